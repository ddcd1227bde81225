"""Which process takes which place of a plan: the one that has the GPU which the plan wants there. Needs no PyTorch.

Rendezvous numbers processes by arrival, so the first machines may be of the wrong type. Every process reports its
device; machines of the plan and machines at hand are then matched by type and number of GPUs, in order where the order
does not matter. Memory, and NVLink where ranks compute a layer together, must be as planned. All processes compute the
same from the same reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import inf

from shardwright.errors import SpecError, bad
from shardwright.plans.placement import machine_sizes
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rows import grouped
from shardwright.runtime.layout.groups import Layout
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.cluster import Gpu, kind_of
from shardwright.units import GIGA

ENOUGH_MEMORY = 0.9  # drivers show a little less than the datasheet
ENOUGH_LINK = 0.5  # a port that is down slows a machine, and does not make it another one
OTHER = "another GPU"  # of which the catalogue knows nothing


@record
class DeviceReport:
    """What one process has: its machine, what its device calls itself, the catalogue's name for it (None: unknown), its
    memory, and its NVLink in one direction (0: none, None: unknown). A CPU stands for any GPU."""

    machine: str
    device: str
    gpu: str | None
    memory_bytes: float
    nvlink_bytes_per_second: float | None = None
    cpu: bool = False


@record
class Seat:
    """GPUs of one type of one machine: `members` are places of the plan, or processes."""

    gpu: str
    machine: str
    members: tuple[int, ...]


def seats(layout: Layout, reports: Sequence[DeviceReport]) -> tuple[int, ...]:
    """Return the place of every process, by its number at the rendezvous.

    Raises SpecError where machines, memory or NVLink are not those of the plan, with what would be.
    """
    if all(report.cpu for report in reports):
        return tuple(range(len(reports)))
    wanted, present = _wanted(layout), _found(layout.plan, reports)
    free = dict.fromkeys(present)
    taken: dict[int, int] = {}
    machines = [list(seats) for _, seats in groupby(wanted, lambda seat: seat.machine)]
    for machine in sorted(machines, key=len, reverse=True):  # those with several types first
        matches = _matches(machine, list(free))
        if matches is None:
            raise _mismatch(wanted, present)
        for seat, match in zip(machine, matches, strict=True):
            del free[match]
            taken.update(zip(match.members, seat.members, strict=True))
    _require_memory(layout, reports, taken)
    _require_nvlink(layout, reports, taken)
    return tuple(taken[process] for process in range(len(reports)))


def _wanted(layout: Layout) -> tuple[Seat, ...]:
    """Return the machines of a plan, in the order of their ranks, GPUs of different types apart."""
    stages, first = [], 0
    for number, size in enumerate(machine_sizes(layout.plan)):
        names = [kind_of(place.gpu) for place in layout.places[first : first + size]]
        for kind, group in groupby(enumerate(names, first), lambda item: item[1]):
            members = tuple(rank for rank, _ in group)
            stages.append(Seat(gpu=kind if kind in gpus() else OTHER, machine=f"machine {number}", members=members))
        first += size
    return tuple(stages)


def _matches(machine: Sequence[Seat], free: Sequence[Seat]) -> list[Seat] | None:
    """Return the GPUs at hand for those of a machine of a plan, all of one machine, None where there are none."""
    for there in dict.fromkeys(seat.machine for seat in free):
        inside = [seat for seat in free if seat.machine == there]
        matches = [next((seat for seat in inside if _alike(seat, wanted)), None) for wanted in machine]
        known = [match for match in matches if match is not None]
        if len(known) == len(machine):
            return known
    return None


def _found(plan: Plan, reports: Sequence[DeviceReport]) -> tuple[Seat, ...]:
    """Return the machines at hand, GPUs of different types apart, in the order of their first process."""
    members = grouped(((report.machine, _type_of(plan, report)), process) for process, report in enumerate(reports))
    return tuple(Seat(gpu=gpu, machine=machine, members=tuple(group)) for (machine, gpu), group in members.items())


def _type_of(plan: Plan, report: DeviceReport) -> str:
    """Return the type of a GPU: one that the plan names; of others one of its own that the catalogue does not know
    either, or what it is called."""
    if report.gpu in gpus() and report.gpu in {pool.gpu.kind for pool in plan.cluster.pools}:
        return report.gpu
    described = any(pool.gpu.kind not in gpus() for pool in plan.cluster.pools)
    return OTHER if described else report.gpu or report.device


def _alike(left: Seat, right: Seat) -> bool:
    return left.gpu == right.gpu and len(left.members) == len(right.members)


def _mismatch(wanted: Sequence[Seat], seats: Sequence[Seat]) -> SpecError:
    there = "; ".join(f"{seat.machine} has {len(seat.members)} x {seat.gpu}" for seat in seats)
    planned = "; ".join(_planned(list(run)) for _, run in groupby(wanted, lambda seat: (seat.gpu, len(seat.members))))
    hint = f"start it on machines as planned, in any order: {planned}; or plan for what is there"
    return bad("train", f"the GPUs are not those of the plan: {there}", hint)


def _planned(run: Sequence[Seat]) -> str:
    """Return equal machines of a plan in words."""
    ranks = f"ranks {run[0].members[0]} to {run[-1].members[-1]}"
    return f"{len(run)} with {len(run[0].members)} x {run[0].gpu} ({ranks})"


def _require_memory(layout: Layout, reports: Sequence[DeviceReport], taken: Mapping[int, int]) -> None:
    types: dict[str, Gpu] = {pool.gpu.name: pool.gpu for pool in layout.plan.cluster.pools}
    for process, place in taken.items():
        wanted = types[layout.places[place].gpu].memory_bytes
        report = reports[process]
        if report.memory_bytes < ENOUGH_MEMORY * wanted:
            has = f"{report.device} of {report.machine} has {report.memory_bytes / 1e9:.0f} GB"
            raise bad("train", f"{has}, the plan counts on {wanted / 1e9:.0f} GB", "plan for what is there")


def _require_nvlink(layout: Layout, reports: Sequence[DeviceReport], taken: Mapping[int, int]) -> None:
    """Raise SpecError where ranks that compute layers together have far less NVLink than the plan counts on."""
    counted: dict[str, float] = {}
    for pool in layout.plan.cluster.pools:
        link = pool.intra_bytes_per_second if pool.intra_bytes_per_second > pool.gpu.pcie_bytes_per_second else 0.0
        if pool.gpu.link.startswith("NVLink"):
            counted[pool.gpu.name] = min(link, counted.get(pool.gpu.name, inf))
    for process, number in taken.items():
        place, report = layout.places[number], reports[process]
        wanted, there = counted.get(place.gpu, 0.0), report.nvlink_bytes_per_second
        together = max(place.tensor_parallel, place.context_parallel, place.expert_parallel) > 1
        if together and there is not None and there < ENOUGH_LINK * wanted:
            has = f"{there / GIGA:.0f} GB/s of NVLink" if there else "no NVLink"
            message = f"{report.machine} has {has}, the plan counts on {wanted / GIGA:.0f} GB/s between its GPUs"
            hint = "plan for what is there: `shardwright discover` writes it down (`intra_node_gb_per_second`)"
            raise bad("train", message, hint)
