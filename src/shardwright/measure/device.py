"""The machine at hand: its devices, what they can compute, the versions of what drives them, how long something
takes on them, and the description of a device that the catalogue does not have, from what was measured on it.

A burst of a few repetitions finds cold clocks and cool silicon; training finds neither. So everything is repeated for a
fixed time at least, in batches long enough for the clock, and the median over the batches is the result.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.discovery.discover import answer
from shardwright.errors import bad
from shardwright.records import record
from shardwright.spec.catalog.gpus import known_gpu
from shardwright.spec.cluster import Gpu
from shardwright.spec.read.custom_gpu import description, stand_in
from shardwright.spec.read.machine_profile import Backend, CollectiveTime, Dtype, MachineProfile, OperatorTime
from shardwright.units import GIBIBYTE, GIGA

if TYPE_CHECKING:
    import torch


CPU_PROCESSES = 2  # a CPU stands for two devices, so that there is something to communicate
REMEDY = "install it with `pip install 'shardwright[runtime]'`, or PyTorch for your GPU as pytorch.org says"
UNMEASURED = (("fp32", 1e12),)
UNMEASURED_BYTES_PER_SECOND = 1e11
LARGE_BYTES = 2**22


@record
class MeasuredDevice:
    """`count` equal devices of one machine. A CPU counts as `CPU_PROCESSES` devices of `threads` threads each.

    `gpu` is the catalogue's entry, None where it has none. `dtypes` are what the devices multiply in, the one to
    measure most first. `cache_bytes` is the size of the last cache.
    """

    name: str
    backend: Backend
    count: int
    gpu: Gpu | None
    dtypes: tuple[Dtype, ...]
    memory_bytes: float
    cache_bytes: float
    multiprocessors: int
    threads: int | None
    torch: str
    cuda: str
    driver: str


def require_torch() -> Any:
    """Return the module torch. Raises SpecError with the remedy where it is not installed."""
    try:
        import torch
    except ImportError:
        raise bad("profile", "measuring needs PyTorch, which is not installed", REMEDY) from None
    return torch


def find_device(backend: str | None, gpu_name: str | None) -> MeasuredDevice:
    """Return the device of the machine: that of `backend` ("cuda" or "cpu"), or the GPU if there is one.

    `gpu_name` says what the device is called in the catalogue, or what to call it. Raises SpecError where PyTorch or
    the device is missing.
    """
    torch = require_torch()
    if backend not in (None, "cuda", "cpu"):
        raise bad(f"`device={backend}`", "is not known", "cuda (also for AMD's ROCm) or cpu")
    if backend is None:
        backend = "cuda" if torch.cuda.is_available() else "cpu"
    if backend == "cuda" and not torch.cuda.is_available():
        raise bad("`device=cuda`", "PyTorch finds no GPU on this machine", "take `device=cpu`, or see `nvidia-smi`")
    return _cuda(torch, gpu_name) if backend == "cuda" else _cpu(torch, gpu_name)


def _cuda(torch: Any, gpu_name: str | None) -> MeasuredDevice:
    properties = torch.cuda.get_device_properties(0)
    name = str(properties.name)
    hip = torch.version.hip
    return MeasuredDevice(
        name=name,
        backend="cuda",
        count=int(torch.cuda.device_count()),
        gpu=known_gpu(gpu_name or name),
        dtypes=cuda_dtypes(torch.cuda.get_device_capability(0), amd=hip is not None),
        memory_bytes=float(properties.total_memory),
        cache_bytes=float(getattr(properties, "L2_cache_size", 0) or 32e6),
        multiprocessors=int(properties.multi_processor_count),
        threads=None,
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda or hip or ""),
        driver=_driver(),
    )


def cuda_dtypes(capability: tuple[int, int], *, amd: bool = False) -> tuple[Dtype, ...]:
    """Return what tensor cores of a compute capability multiply in: NVIDIA's bf16 and tf32 since 8.0, fp8 since 8.9.
    AMD's parts of that range number otherwise; bf16, fp16 and fp32 are measured there."""
    if amd:
        return ("bf16", "fp16", "fp32")
    if capability >= (8, 9):
        return ("bf16", "fp8", "fp16", "tf32", "fp32")
    return ("bf16", "fp16", "tf32", "fp32") if capability >= (8, 0) else ("fp16", "fp32")


def _cpu(torch: Any, gpu_name: str | None) -> MeasuredDevice:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(cores // CPU_PROCESSES, 1)
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return MeasuredDevice(
        name=_cpu_name(),
        backend="cpu",
        count=CPU_PROCESSES,
        gpu=None if gpu_name is None else known_gpu(gpu_name),
        dtypes=("fp32", "bf16"),
        memory_bytes=float(pages) / CPU_PROCESSES,
        cache_bytes=32e6,
        multiprocessors=threads,
        threads=threads,
        torch=str(torch.__version__),
        cuda="",
        driver="",
    )


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*:\s*(\S.*)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or "CPU"


def _driver() -> str:
    """Return the version of NVIDIA's driver, "" where its tool is missing or fails."""
    version = answer(("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")) or ""
    return next(iter(version.split()), "")


def torch_device(device: MeasuredDevice) -> torch.device:
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if device.backend == "cuda" else torch.device("cpu")


def synchronize(backend: str) -> None:
    """Wait until the device has done all that it was given."""
    if backend == "cuda":
        import torch

        torch.cuda.synchronize()


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
    link = max((_bytes_per_second(row) for row in collectives if row.bytes >= LARGE_BYTES), default=0.0)
    return stand_in(
        name=name,
        architecture=device.backend,
        multiprocessors=device.multiprocessors,
        peak_flops=peaks or UNMEASURED,
        memory_bytes=device.memory_bytes,
        memory_bytes_per_second=moved.bytes / moved.seconds if moved else UNMEASURED_BYTES_PER_SECOND,
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
        group |= {
            "host_memory_gb": profile.memory_bytes * profile.count / GIBIBYTE,
            "host_memory_gb_per_second": gpu.memory_bytes_per_second / GIGA,
            "inter_node_gbps": 10,
        }
    return {"nodes": [group]}


Call = Callable[[], object]
BATCH_SECONDS = 5e-3
FEWEST_BATCHES, MOST_REPEATS = 3, 100_000
WARM_UP_SHARE = 0.2


@record
class Timing:
    """Median seconds of one call, and the distance between the quartiles as a part of it."""

    seconds: float
    spread: float


def sustained(calls: Sequence[Call], device: MeasuredDevice, at_least_seconds: float) -> Timing:
    """Return the time of one call when `calls`, which do the same on other memory, are repeated in turn.

    A fifth of the time goes to warming up. Batches are of equal length, up to `BATCH_SECONDS`, and at least three.
    """
    timer = cuda_batch if device.backend == "cuda" else host_batch
    turn = cycle(calls)
    first = timer(turn, 1)
    once = min(timer(turn, 1), first)
    batch_seconds = min(BATCH_SECONDS, at_least_seconds / FEWEST_BATCHES)
    repeats = min(max(round(batch_seconds / max(once, 1e-9)), 1), MOST_REPEATS)
    for _ in until(WARM_UP_SHARE * at_least_seconds):
        timer(turn, repeats)
    return timing([timer(turn, repeats) for _ in until((1.0 - WARM_UP_SHARE) * at_least_seconds, FEWEST_BATCHES)])


def until(seconds: float, fewest: int = 0) -> Iterator[None]:
    """Yield until `seconds` have gone by, and `fewest` times at least."""
    begin, done = time.perf_counter(), 0
    while done < fewest or time.perf_counter() - begin < seconds:
        yield
        done += 1


def timing(samples: Sequence[float]) -> Timing:
    """Return median and relative distance of the quartiles of some samples."""
    middle = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else (middle, middle, middle)
    return Timing(seconds=middle, spread=max(high - low, 0.0) / middle)


def host_batch(turn: Iterator[Call], repeats: int) -> float:
    """Return the seconds of one of `repeats` calls by the host's clock."""
    begin = time.perf_counter()
    for call in islice(turn, repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def cuda_batch(turn: Iterator[Call], repeats: int) -> float:
    """Return the seconds of one of `repeats` calls by the events of the current stream."""
    import torch

    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    for call in islice(turn, repeats):
        call()
    end.record()
    synchronize("cuda")
    return float(begin.elapsed_time(end)) * 1e-3 / repeats
