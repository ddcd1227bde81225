"""The iteration of a layered plan, in the account of all plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.context import Context
from shardwright.cost.iteration.footprint import Footprint
from shardwright.cost.iteration.layered.seconds import (
    everyone_of,
    moved_seconds,
    pass_seconds,
    slots,
    unit_passes,
    updating_seconds,
)
from shardwright.cost.iteration.layered.shares import Passes, RowShares, Units, memory, passes, units_of
from shardwright.cost.iteration.links import Contexts
from shardwright.cost.iteration.replica_time import Mixed, ReplicaTime, UnitPasses
from shardwright.cost.iteration.step import StageTimes
from shardwright.cost.strategies import RECOMPUTE
from shardwright.plans.plan import Plan, Replica, TimeBreakdown


def layered_iteration(plan: Plan, contexts: Contexts) -> Mixed:
    """Return the iteration of a legal layered plan."""
    everyone = everyone_of(plan, contexts)
    parts = float(plan.optimizer.parts or 1)
    largest = np.array([max(replica.state or 0 for replica in plan.replicas) / parts])
    units = [_units(plan, replica, contexts) for replica in plan.replicas]
    kinds = [
        (_context(replica, contexts), unit, _shares(plan, replica))
        for replica, unit in zip(plan.replicas, units, strict=True)
    ]
    moved = moved_seconds(everyone, plan.model, plan.job, units[0].parameters, largest)
    overlap = plan.overlap.param_gather and plan.overlap.grad_reduce
    waves = range(plan.schedule.waves or 1)
    seconds = float(sum(wave_seconds(kinds, moved, wave, overlap=overlap)[0] for wave in waves))
    when = unit_passes([[passes(*kind, wave) for kind in kinds] for wave in waves], moved, overlap=overlap)
    replicas = []
    for replica, unit, kind, order in zip(plan.replicas, units, kinds, when, strict=True):
        each, context, state = passes(*kind), kind[0], np.array([(replica.state or 0) / parts])
        held = memory(context, unit, _shares(plan, replica), state, largest, everyone.gpus)
        updating = updating_seconds(context, unit, everyone, state, largest)
        replicas.append(_replica_time(replica, each, seconds, updating, held, order))
    update = max(float(each.optimizer.max()) for each in replicas)
    total = seconds + update + everyone.norm_seconds
    return Mixed(seconds=total, norm_seconds=everyone.norm_seconds, replicas=tuple(replicas), lanes=())


def wave_seconds(
    kinds: Sequence[tuple[Context, Units, RowShares]], moved: tuple[Floats, Floats], wave: int, *, overlap: bool = True
) -> Floats:
    """Return the seconds of the passes of one wave, [N], where the GPUs of each of `kinds` have N shares; `moved` are
    gathers and scatters of each unit, [N, U]."""
    taken = [passes(*kind, wave) for kind in kinds]
    forward, backward = (np.max([getattr(part, name) for part in taken], axis=0) for name in ("forward", "backward"))
    return pass_seconds(slots(forward, backward, *moved), overlap=overlap)


def layered_breakdown(plan: Plan, iteration: Mixed, contexts: Contexts) -> TimeBreakdown:
    """Return where the time goes, seen from the GPU that computes most. Waiting for other GPUs at a unit counts as
    data-parallel communication, of which it is part."""
    slowest = slowest_replica(iteration)
    replica, times = plan.replicas[slowest], iteration.replicas[slowest]
    software = _context(replica, contexts).software
    count = replica.micro_batches
    forward, backward, again = (
        count * float(seconds.sum())
        for seconds in (times.stages.forward, times.stages.backward, times.stages.recompute)
    )
    launching = count * software.pass_seconds
    return TimeBreakdown(
        forward_seconds=forward - launching,
        backward_seconds=backward - again - launching,
        recompute_seconds=again,
        tensor_parallel_seconds=0.0,
        context_parallel_seconds=0.0,
        expert_parallel_seconds=0.0,
        pipeline_seconds=0.0,
        bubble_seconds=0.0,
        data_parallel_seconds=max(times.busy_seconds - forward - backward, 0.0),
        optimizer_seconds=max(float(seconds.optimizer.max()) for seconds in iteration.replicas)
        + iteration.norm_seconds
        - software.step_seconds,
        framework_seconds=2.0 * launching + software.step_seconds,
    )


def slowest_replica(iteration: Mixed) -> int:
    """Return the replica whose GPUs compute longest."""
    return int(np.argmax([replica.pipeline_seconds for replica in iteration.replicas]))


def _context(replica: Replica, contexts: Contexts) -> Context:
    return contexts[replica.stages[0].gpu]


def _units(plan: Plan, replica: Replica, contexts: Contexts) -> Units:
    sizes = sorted(set(replica.sizes(plan.micro_batch)))
    return units_of(_context(replica, contexts), sizes, plan.gpus, flash=plan.flash_attention)


def _shares(plan: Plan, replica: Replica) -> RowShares:
    again = replica.stages[0].recompute
    return RowShares(
        rows=np.array([replica.samples(plan.micro_batch)]),
        micro_batches=np.array([replica.micro_batches]),
        waves=np.array([plan.schedule.waves or 1]),
        recompute=np.array([RECOMPUTE.index(again.method or again.granularity)]),
        recompute_layers=np.array([again.layers or 0]),
    )


def _replica_time(
    replica: Replica, taken: Passes, seconds: float, optimizer: Floats, footprint: Footprint, order: UnitPasses
) -> ReplicaTime:
    """Return the times of a replica: of its own passes, and of what it waits for and cannot hide."""
    mean = {field.name: getattr(taken, field.name).sum() / replica.micro_batches for field in fields(Passes)}
    stages = StageTimes(**{name: np.full((1, 1, 1), value) for name, value in {**mean, "weights": 0.0}.items()})
    whole = float(taken.total[0])
    return ReplicaTime(
        stages=stages,
        undisturbed=stages,
        transfers=np.zeros(0),
        pipeline_seconds=whole,
        tails=np.array([max(seconds - whole, 0.0)]),
        gathers=np.zeros(1),
        optimizer=optimizer,
        tied_seconds=0.0,
        memory=footprint,
        units=order,
    )
