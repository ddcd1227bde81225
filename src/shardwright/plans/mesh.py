"""One mesh of ranks, as Megatron-LM has: degrees, layers and micro-batches are the same in every replica, and ranks are
numbered by the plan's rank order. Machines of several GPU types take part where they are started in the right order."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Ints, distinct
from shardwright.plans.placement import STAGES_TOGETHER, numbers_by_type, placement_of
from shardwright.plans.plan import DEGREES, Plan, Recompute, Replica, Stage
from shardwright.records import record


@record
class Host:
    """A machine that gives `gpus` of its GPUs to a plan; of GPUs of several types in a machine those of each type are
    started as if they were one."""

    gpu: str
    gpus: int


def is_mesh(plan: Plan) -> bool:
    """Whether a legal plan is one mesh of ranks."""
    if plan.layered or len({shape(replica) for replica in plan.replicas}) > 1 or one_recompute(plan) is None:
        return False
    degrees = {tuple(getattr(stage, name) for name in DEGREES) for stage in plan.stages}
    return len(degrees) == 1 and (plan.uniform or hosts(plan) is not None)


def has_equal_shares(plan: Plan) -> bool:
    """Whether a legal plan is data-parallel with equal shares: one stage, degree, number of micro-batches and
    recomputation on all GPUs, of whatever types."""
    ways = {
        (shape(entry), stage.recompute, *(getattr(stage, name) for name in DEGREES))
        for entry in plan.replicas
        for stage in entry.stages
    }
    return not plan.layered and len(ways) == 1 and all(len(entry.stages) == 1 for entry in plan.replicas)


def shape(replica: Replica) -> object:
    """Return what replicas of a mesh have in common."""
    return replica.micro_batches, tuple(stage.layers for stage in replica.stages)


def hosts(plan: Plan) -> tuple[Host, ...] | None:
    """Return the machines of a legal plan with equal replicas in the order in which a mesh has their ranks; None where
    the ranks of a machine would not follow each other."""
    placement = placement_of(plan)
    order = np.argsort(_ranks(plan, placement.stage))
    machines = numbers_by_type(plan, placement)[order]
    begins = np.flatnonzero(np.append(True, machines[1:] != machines[:-1]))
    if len(distinct(machines)) < len(begins):
        return None
    names = np.array(placement.types)[placement.type[placement.stage]][order]
    counts = np.diff(np.append(begins, len(machines)))
    return tuple(
        Host(gpu=str(gpu), gpus=count) for gpu, count in zip(names[begins].tolist(), counts.tolist(), strict=True)
    )


def _ranks(plan: Plan, stage: Ints) -> Ints:
    """Return the rank in the mesh of every GPU of a placement, whose stages, over all replicas, are `stage` [G]."""
    depth, size = len(plan.replicas[0].stages), plan.stages[0].gpus
    counts = np.array([replica.count for replica in plan.replicas], dtype=np.int64)
    before = np.repeat(np.cumsum(counts) - counts, depth)  # copies of the replicas before, for each stage
    place = np.arange(len(stage)) - np.searchsorted(stage, stage)
    copy, within = before[stage] + place // size, place % size
    rank = stage % depth
    if plan.rank_order == STAGES_TOGETHER:
        return np.asarray(within + size * (rank + depth * copy))
    return np.asarray(within + size * (copy + int(counts.sum()) * rank))


def one_recompute(plan: Plan) -> Recompute | None:
    """Return the recomputation that all stages of a plan can be told: the first `layers` layers of each virtual stage
    are all of a stage that has fewer. None where they differ in more."""
    widest = max((stage.recompute for stage in plan.stages), key=lambda recompute: recompute.layers or 0)
    return widest if all(_same(stage, widest) for stage in plan.stages) else None


def _same(stage: Stage, wanted: Recompute) -> bool:
    mode = stage.recompute
    if mode == wanted:
        return True
    whole = mode.layers is not None and all(end - start <= mode.layers for start, end in stage.layers)
    return whole and (mode.granularity, mode.method) == ("full", "block") == (wanted.granularity, wanted.method)
