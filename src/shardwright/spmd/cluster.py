"""The machines of a cluster as the search for programs sees them: rates that training reaches, links, memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.cost.compute.efficiency import KERNEL_SECONDS
from shardwright.cost.frameworks.overheads import overheads
from shardwright.cost.measured.links import measured_link, with_links
from shardwright.cost.measured.machine import require_gpus
from shardwright.cost.measured.summary import achieved_parts
from shardwright.cost.network.collectives import Fabric, fabric
from shardwright.errors import bad
from shardwright.spec.cluster import Cluster, NodePool
from shardwright.spec.read.machine_profile import MachineProfile
from shardwright.synthesis.machines import Device, DeviceMachine, Machines

# Operators of a layer's forward that launch kernels: 26 in a trace of GPT-2, 40 of Llama.
LAYER_LAUNCHES = 32
RESERVED_BYTES = 1.5e9  # CUDA context, NCCL buffers and fragments of the allocator


def machines_of(
    cluster: Cluster, precision: str, efficiency: float, profiles: Sequence[MachineProfile] = ()
) -> Machines:
    """Return the machines of `cluster`, its pools one after another. The network is as fast as the slowest machine's
    card.

    Each GPU reaches `efficiency` of its peak in `precision`, and links what the data sheets say; where `profiles` have
    measured them, GPUs reach what their matrix products reached, and links the latency and the bandwidth that explain
    the collectives best. An operator takes what launching its kernel takes on the device, and a part of what an eager
    framework's host takes to launch a layer. Raises `SpecError` where a GPU has no peak, and for a profile of a GPU
    that is not there.
    """
    require_gpus(profiles, cluster)
    links = [_links(pool, profiles) for pool in cluster.pools]
    machines = [
        [_machine(pool, found, precision, _reached(pool, precision, profiles, efficiency))] * pool.nodes
        for pool, found in zip(cluster.pools, links, strict=True)
    ]
    cards = [
        found.inter_bytes_per_second * pool.gpus_per_node for pool, found in zip(cluster.pools, links, strict=True)
    ]
    return Machines(
        machines=tuple(machine for several in machines for machine in several),
        network_bytes_per_second=min(cards),
        network_latency_seconds=max(found.inter_latency_seconds for found in links),
    )


def _links(pool: NodePool, profiles: Sequence[MachineProfile]) -> Fabric:
    rows = [row for profile in profiles if profile.gpu.name == pool.gpu.kind for row in profile.collectives]
    plain = fabric(pool, intra_efficiency=1.0, inter_efficiency=1.0)
    return with_links(plain, measured_link(plain, rows, inter=False), measured_link(plain, rows, inter=True))


def _machine(pool: NodePool, links: Fabric, precision: str, reached: float) -> DeviceMachine:
    device = Device(
        name=pool.gpu.name,
        flops_per_second=_peak(pool, precision) * reached,
        memory_bytes=pool.memory_bytes - RESERVED_BYTES,
        memory_bytes_per_second=pool.gpu.memory_bytes_per_second,
        operator_seconds=KERNEL_SECONDS,
        launch_seconds=overheads("eager", pool.gpu).layer_seconds / LAYER_LAUNCHES,
    )
    return DeviceMachine(
        device=device,
        gpus=pool.gpus_per_node,
        link_bytes_per_second=links.intra_bytes_per_second,
        link_latency_seconds=links.intra_latency_seconds,
    )


def _peak(pool: NodePool, precision: str) -> float:
    peak = pool.gpu.peak(precision)
    if peak is None:
        raise bad(pool.gpu.name, f"cannot compute in {precision}", "give the module parameters of another type")
    return peak


def _reached(pool: NodePool, precision: str, profiles: Sequence[MachineProfile], efficiency: float) -> float:
    """Return the part of its peak that a GPU reaches."""
    rows = [
        row
        for profile in profiles
        for row in profile.operators
        if (profile.gpu.name, row.kind, row.dtype) == (pool.gpu.kind, "gemm", precision)
    ]
    return float(np.median(achieved_parts(pool.gpu, precision, rows))) if rows else efficiency
