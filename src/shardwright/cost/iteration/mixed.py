"""The exact iteration of any plan: replicas of different depth, GPU types and micro-batch counts.

    T = max over replicas of (T_pipeline + max tail + max gather + T_tied) + max optimizer + T_norm

Every stage is costed by the machinery of uniform strategies, with the machines it runs on; then each replica's pipeline
is simulated with the unequal stages that this gives. Gradients of a layer are reduced over all its holders, at the
speed of the slowest link among them. Holders wait for each other, so exposed communication counts from the end of each
replica's own pipeline, and only the replica that is done last counts. GPUs of a type are given out in order: replica by
replica, stage by stage, the copies of a stage next to each other (or those of a replica, where the rank order of the
plan has data outermost). Uneven FSDP has no pipelines; its account is in `layered`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.frameworks.overheads import Calibration
from shardwright.cost.iteration.batch import beside_transfers
from shardwright.cost.iteration.footprint import Footprint, footprint
from shardwright.cost.iteration.lanes import Known, Lanes, contexts_of, lane_of, lanes_of, of_pipelines, of_stages
from shardwright.cost.iteration.links import (
    Contexts,
    agreement_delay,
    move_seconds,
    once_seconds,
    tied_seconds_between,
    unit_delays,
)
from shardwright.cost.iteration.moments import fixed_bytes, held_parameters
from shardwright.cost.iteration.orthogonalisation import orthogonalisation_seconds
from shardwright.cost.iteration.places import Places, copied_parameters, places_of
from shardwright.cost.iteration.replica_time import Mixed as Mixed
from shardwright.cost.iteration.replica_time import ReplicaTime as ReplicaTime
from shardwright.cost.iteration.step import (
    StageTimes,
    both_gather_seconds,
    exposed_tails,
    message_bytes,
    norm_seconds,
    optimizer_seconds,
    stage_groups,
    stage_times,
    tied_embedding_seconds,
)
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.memory.sizes import HeldParameters, copied_bytes
from shardwright.cost.network.collectives import OVERLAP_SLOWDOWN
from shardwright.cost.pipeline.schedule import BACKWARD, FORWARD, Order, order_of_schedule
from shardwright.cost.pipeline.simulate import Timeline, simulate, timeline
from shardwright.plans.plan import Plan, Replica
from shardwright.records import record


@record
class _Stages:
    """All stages of a plan in order: seconds of a pass [S, v], parameters [S], their optimizer step, message bytes,
    seconds for a tied embedding if the stage is at an end and the other end is of the same type or another, and memory,
    [S] each."""

    forward: Floats
    backward: Floats
    recompute: Floats
    weights: Floats
    dense: Floats
    expert: Floats
    optimizer: Floats
    message_bytes: Floats
    tied_seconds: Floats
    tied_apart_seconds: Floats
    memory: Footprint


def mixed_iteration(
    plan: Plan,
    efficiency: Efficiency,
    calibration: Calibration | None = None,
    *,
    known: Known | None = None,
    contexts: Contexts | None = None,
) -> Mixed:
    """Return the iteration of `plan`. The plan must be a legal one (`plans.check`). `known` keeps layer tables between
    calls for plans of one model, job, cluster and efficiency; `contexts` are those of its GPU types, where a search has
    them."""
    contexts = contexts or contexts_of(plan, efficiency, calibration)
    if plan.layered:
        from shardwright.cost.iteration.layered.plan import layered_iteration  # few plans are uneven FSDP

        return layered_iteration(plan, contexts)
    lanes, places = lanes_of(plan, contexts, known), places_of(plan)
    held = [held_parameters(lane.context, lane.rows, lane.shards, lane.starts) for lane in lanes]
    stages = _stages(plan, lanes, held, places)
    moves = move_seconds(plan, places, contexts, stages.message_bytes)
    if len(plan.replicas) == len(places.types) == 1:
        once = of_stages(lanes, [_own_once_seconds(lane, part) for lane, part in zip(lanes, held, strict=True)])
    else:
        once = once_seconds(plan, places, contexts, stages.dense, stages.expert)
    waits = unit_delays(plan, places)
    replicas = tuple(
        _replica_time(plan, replica, stages, lanes, moves, (once, waits), slice(*ends))
        for replica, ends in zip(plan.replicas, pairwise(places.bounds), strict=True)
    )
    longest = max(replica.busy_seconds for replica in replicas)
    update = float(stages.optimizer.max())
    norm = max(float(norm_seconds(lane.context, lane.rows).max()) for lane in lanes) + agreement_delay(plan, places)
    return Mixed(seconds=longest + update + norm, norm_seconds=norm, replicas=replicas, lanes=tuple(lanes))


def _stages(plan: Plan, lanes: list[Lanes], held: list[HeldParameters], places: Places) -> _Stages:
    """Return what every stage takes, costed with its lane."""
    times = [stage_times(lane.context, lane.rows, lane.shards, lane.starts) for lane in lanes]
    pairs = list(zip(lanes, held, strict=True))
    memory = [_footprint(lane) for lane in lanes]

    dense, expert = (
        of_stages(lanes, [own_memory.dense for own_memory in held]),
        of_stages(lanes, [own_memory.expert for own_memory in held]),
    )
    weights, gradients = (
        width * copied_parameters(places, dense, expert) for width in copied_bytes(plan.model, plan.job)
    )
    footprints = _each(lambda name: of_stages(lanes, [getattr(part, name) for part in memory]))
    return _Stages(
        forward=of_stages(lanes, [part.forward for part in times]),
        backward=of_stages(lanes, [part.backward for part in times]),
        recompute=of_stages(lanes, [part.recompute for part in times]),
        weights=of_stages(lanes, [part.weights for part in times]),
        dense=dense,
        expert=expert,
        optimizer=of_stages(
            lanes,
            [
                optimizer_seconds(lane.context, lane.rows, own_memory.dense, own_memory.expert)
                + orthogonalisation_seconds(lane.context, lane.rows, own_memory)
                for lane, own_memory in pairs
            ],
        ),
        message_bytes=of_pipelines(lanes, [message_bytes(lane.context, lane.rows) for lane in lanes]),
        tied_seconds=of_pipelines(lanes, [tied_embedding_seconds(lane.context, lane.rows) for lane in lanes]),
        tied_apart_seconds=of_pipelines(
            lanes, [tied_embedding_seconds(lane.context, lane.rows, apart=True) for lane in lanes]
        ),
        memory=replace(
            footprints,
            weights=footprints.weights + weights,
            gradients=footprints.gradients + gradients,
            context=footprints.context + memory_facts(plan.job.framework).fragmentation * (weights + gradients),
        ),
    )


def _footprint(lanes: Lanes) -> Footprint:
    """Return the memory of every stage if all were like one lane: a replica has micro-batches of its own."""
    given = (lanes.context, lanes.rows, lanes.shards, lanes.starts)
    return footprint(*given, fixed_bytes(*given, lanes.micro_batches))


def _each(term: Callable[[str], Floats]) -> Footprint:
    return Footprint(**{part.name: term(part.name) for part in fields(Footprint)})


def _own_once_seconds(lanes: Lanes, held: HeldParameters) -> Floats:
    """Return the seconds in which equal replicas gather a byte of each parameter, [N, P]."""
    groups = stage_groups(lanes.context, lanes.rows, int(lanes.rows.pp[0]))
    return both_gather_seconds(lanes.context.links, groups, held.dense, held.expert, 1.0)


def _replica_time(
    plan: Plan,
    replica: Replica,
    stages: _Stages,
    lanes: list[Lanes],
    moves: Floats,
    shared: tuple[Floats, Floats],
    part: slice,
) -> ReplicaTime:
    """Return the times of the replica that has the stages `part`; `shared` are the seconds in which the holders of each
    stage's layers gather a byte of each parameter, and those that they wait for links between sites, [S] each."""
    chunks = plan.schedule.virtual_stages
    row = lane_of(lanes, part.start).row
    undisturbed = StageTimes(
        forward=stages.forward[part].T[None],
        backward=stages.backward[part].T[None],
        recompute=stages.recompute[part].T[None],
        weights=stages.weights[part].T[None],
    )
    apart = replica.stages[0].gpu != replica.stages[-1].gpu
    tied = float((stages.tied_apart_seconds if apart else stages.tied_seconds)[part][[0, -1]].max())
    transfers = np.tile(moves[part], chunks)[: chunks * len(replica.stages) - 1]
    times = beside_transfers(row, undisturbed, transfers[None])
    tails, gathers = exposed_tails(plan.model, plan.job, row, times, *(seconds[None, part] for seconds in shared))
    return ReplicaTime(
        stages=times,
        undisturbed=undisturbed,
        transfers=transfers,
        pipeline_seconds=pipeline_seconds(plan, replica, times, transfers),
        tails=tails[0],
        gathers=gathers[0],
        optimizer=stages.optimizer[part],
        tied_seconds=max(tied, tied_seconds_between(plan, replica)) if apart else tied,
        memory=_each(lambda name: getattr(stages.memory, name)[part]),
    )


def pipeline_seconds(plan: Plan, replica: Replica, times: StageTimes, transfers: Floats) -> float:
    """Return the exact time of a replica's pipeline."""
    if len(replica.stages) == 1:
        return float(replica.micro_batches * times.both.sum())
    forward, backward, weights = _durations(plan, times)
    moves = _moves(plan, transfers)[None]
    done = simulate(_order(plan, replica), forward, backward, moves, weights, blocking=not plan.overlap.pipeline)
    return float(done.makespan_seconds[0])


def pipeline_timeline(plan: Plan, replica: Replica, times: ReplicaTime) -> Timeline:
    """Return when each pass of a replica's micro-batches runs; under uneven FSDP a pass is of a unit and a wave."""
    if (units := times.units) is not None:
        return Timeline(
            rank=np.zeros_like(units.unit), kind=np.where(units.backward, BACKWARD, FORWARD),
            virtual_stage=units.unit, micro_batch=units.wave,
            start_seconds=units.start_seconds, end_seconds=units.end_seconds,
        )  # fmt: skip
    forward, backward, weights = (given if given is None else given[0] for given in _durations(plan, times.stages))
    moves, blocking = _moves(plan, times.transfers), not plan.overlap.pipeline
    assert forward is not None and backward is not None
    return timeline(_order(plan, replica), forward, backward, moves, weights, blocking=blocking)


def _durations(plan: Plan, times: StageTimes) -> tuple[Floats, Floats, Floats | None]:
    """Return the times of each kind of operation, [1, v * P] each."""
    forward, backward, weights = (part.reshape(1, -1) for part in (times.forward, times.backward, times.weights))
    return forward, backward, weights if plan.schedule.weights_apart else None


def _moves(plan: Plan, transfers: Floats) -> Floats:
    """Return what is left of transfers, which computation hides in part where the plan overlaps them."""
    return (1.0 - OVERLAP_SLOWDOWN) * transfers if plan.overlap.pipeline else transfers


def _order(plan: Plan, replica: Replica) -> Order:
    schedule = plan.schedule
    return order_of_schedule(schedule.kind, len(replica.stages), schedule.virtual_stages, replica.micro_batches)
