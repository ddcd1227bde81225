"""What fills a GPU, from a message of full memory or a snapshot, beside the account of the plan, and the single change
that would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwright.cost.iteration.lanes import contexts_of
from shardwright.diagnosis.case import Case
from shardwright.plans.findings import Remedy
from shardwright.plans.plan import StageMemory
from shardwright.records import record
from shardwright.trainers.plan import changes_to_run
from shardwright.units import GIBIBYTE, format_bytes

FRAGMENTED = 0.08  # of the GPU's memory, reserved and not used, from which on it is in pieces; chosen, 0.05 to 0.15
OTHERS_BYTES = 2.0 * GIBIBYTE  # beyond what the driver takes itself


@record
class MemoryAccount:
    """The memory of a GPU of a stage: the account of the plan, what was there as far as it is told, and single changes
    that would make room. `needed_bytes` are those that the process wanted in all, pieces between tensors with them, and
    `capacity_bytes` what other processes leave of the GPU; `notes` say in words what stands out."""

    replica: int
    stage: int
    expected: StageMemory
    allocated_bytes: float | None
    reserved_bytes: float | None
    needed_bytes: float | None
    capacity_bytes: float
    notes: tuple[str, ...]
    changes: tuple[Remedy, ...]


def memory_account(case: Case) -> MemoryAccount | None:
    """Return the account of the GPU that a message or snapshot is of; None without one."""
    message, snapshot = case.out_of_memory, next(iter(case.snapshots), None)
    if message is None and snapshot is None:
        return None
    rank = message.rank if message is not None else None
    replica, stage = case.stage_of_rank.get(rank if rank is not None else -1, _fullest(case))
    expected = case.prediction.memory[replica][stage]
    allocated = reserved = needed = None
    capacity = expected.capacity_bytes
    if message is not None:
        capacity = message.capacity_bytes or capacity
        allocated = message.allocated_bytes
        if allocated is not None and message.unused_bytes is not None:
            reserved = allocated + message.unused_bytes
        if allocated is not None and message.wanted_bytes is not None:
            outside = (
                expected.context_bytes
                if message.process_bytes is None
                else message.process_bytes - (reserved or allocated)
            )
            needed = (reserved or allocated) + message.wanted_bytes + max(outside, 0.0)
            capacity -= message.others_bytes or 0.0
    elif snapshot is not None:
        allocated, reserved = float(snapshot.allocated_bytes), float(snapshot.reserved_bytes)
        needed = float(snapshot.peak_bytes or snapshot.reserved_bytes) + expected.context_bytes
    short = message is not None or (needed is not None and needed > capacity)
    return MemoryAccount(
        replica=replica,
        stage=stage,
        expected=expected,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        needed_bytes=needed,
        capacity_bytes=capacity,
        notes=tuple(_notes(case, allocated, reserved, capacity)),
        changes=_changes(case, expected, needed, capacity) if short else (),
    )


def _fullest(case: Case) -> tuple[int, int]:
    places = [(number, stage) for number, row in enumerate(case.prediction.memory) for stage in range(len(row))]
    return max(places, key=lambda at: case.prediction.memory[at[0]][at[1]].total_bytes)


def _notes(case: Case, allocated: float | None, reserved: float | None, capacity: float) -> Iterator[str]:
    message = case.out_of_memory
    if allocated is not None and reserved is not None and reserved - allocated > FRAGMENTED * capacity:
        yield (
            f"{format_bytes(reserved - allocated)} are reserved and lie between tensors in pieces: "
            "PYTORCH_ALLOC_CONF=expandable_segments:True lets segments grow"
        )
    if message is not None and message.others_bytes is not None and message.others_bytes > OTHERS_BYTES:
        yield f"{format_bytes(message.others_bytes)} of the GPU belong to other processes: nvidia-smi lists them"
    for snapshot in case.snapshots:
        for place in snapshot.largest[:4]:
            yield f"{format_bytes(place.bytes)} in {place.count} tensors were made by {place.place}"


def _changes(case: Case, expected: StageMemory, needed: float | None, capacity: float) -> tuple[Remedy, ...]:
    """Return single changes after which the account, scaled to what was really needed, fits."""
    plan = case.plan
    if not plan.uniform:
        return ()
    (context,) = contexts_of(plan, case.efficiency).values()
    scale = max((needed or expected.total_bytes) / expected.total_bytes, 1.0)
    limit = min(capacity / scale, 0.999 * expected.total_bytes)
    return changes_to_run(replace(context, headroom=limit / context.pool.memory_bytes), plan)
