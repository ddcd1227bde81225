"""The description of a device that the catalogue does not have, from what was measured on it."""

from __future__ import annotations

from dataclasses import replace

from shardwright.measure.device import MeasuredDevice
from shardwright.spec.cluster import Gpu
from shardwright.spec.read.custom_gpu import description, stand_in
from shardwright.spec.read.machine_profile import CollectiveTime, MachineProfile, OperatorTime
from shardwright.units import GIBIBYTE, GIGA

UNMEASURED = (("fp32", 1e12),)
UNMEASURED_BYTES_PER_SECOND = 1e11
LARGE_BYTES = 2**22


def custom_device(device: MeasuredDevice, profile: MachineProfile | None, name: str) -> Gpu:
    """Return the device as a GPU: its peaks are the best products measured, its bandwidth that of the
    largest addition, its link the best collective."""
    operators = () if profile is None else profile.operators
    collectives = () if profile is None else profile.collectives
    peaks = tuple(
        (dtype, best)
        for dtype in sorted(device.dtypes)
        if (best := max((_flops_per_second(row) for row in operators if row.dtype == dtype), default=0.0))
    )
    moved = max((row for row in operators if row.operation == "add"), key=lambda row: row.bytes, default=None)
    bandwidth = moved.bytes / moved.seconds if moved else UNMEASURED_BYTES_PER_SECOND
    link = max((_bytes_per_second(row) for row in collectives if row.bytes >= LARGE_BYTES), default=0.0)
    return stand_in(
        name=name,
        architecture=device.backend,
        multiprocessors=device.multiprocessors,
        peak_flops=peaks or UNMEASURED,
        memory_bytes=device.memory_bytes,
        memory_bytes_per_second=bandwidth,
        l2_bytes=device.cache_bytes,
        link_domain=device.count,
        **({"link_bytes_per_second": link} if link else {}),
    )


def _flops_per_second(row: OperatorTime) -> float:
    return 2.0 * row.m * row.n * row.k * row.groups / row.seconds


def _bytes_per_second(row: CollectiveTime) -> float:
    """Return what one rank sends a second in a ring."""
    rounds = {"all_reduce": 2.0, "send": row.ranks / (row.ranks - 1)}.get(row.collective, 1.0)
    return rounds * row.bytes * (row.ranks - 1) / row.ranks / row.seconds


def cluster_fragment(profile: MachineProfile) -> dict[str, object]:
    """Return the machine as the content of a cluster file, so that it can be planned for."""
    gpu = profile.gpu
    named: object = description(replace(gpu, memory_bytes=profile.memory_bytes)) if gpu.vendor == "custom" else gpu.name
    group: dict[str, object] = {"count": 1, "gpus": profile.count, "gpu": named}
    if gpu.vendor == "custom":
        group["host_memory_gb"] = profile.memory_bytes * profile.count / GIBIBYTE
        group["host_memory_gb_per_second"] = gpu.memory_bytes_per_second / GIGA
        group["inter_node_gbps"] = 10
    return {"nodes": [group]}
