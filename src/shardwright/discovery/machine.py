"""Groups of equal machines as somebody describes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

PARTS = re.compile(r"\dg\.\d+gb", re.IGNORECASE)  # in names of MIG's parts of a GPU, which train nothing together
Ask = Callable[[Sequence[str]], str | None]  # a command's standard output; None where it is missing or fails


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineGroup:
    """`count` equal machines. `gpu` is the name that its source gives. None and () stand for what could not be seen:
    memory of a GPU in MiB, of the host in GiB, NVLink of one GPU in GB/s (0: none), network cards in Gbit/s each."""

    gpu: str
    gpus: int
    count: int = 1
    gpu_memory_mib: float | None = None
    host_memory_gib: float | None = None
    nvlink_gb_per_second: float | None = None
    network_gbps: tuple[float, ...] = ()


def grouped(machines: Iterable[MachineGroup]) -> tuple[MachineGroup, ...]:
    """Return machines, equal ones counted together, in the order in which they first came; parts of GPUs are none."""
    counts = Counter[MachineGroup]()
    for machine in machines:
        if not PARTS.search(machine.gpu):
            counts[replace(machine, count=1)] += machine.count
    return tuple(replace(machine, count=count) for machine, count in counts.items())
