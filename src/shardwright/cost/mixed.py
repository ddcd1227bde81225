"""The exact iteration of any plan: replicas of different depth, GPU types and micro-batch counts.

    T = max over replicas of T_pipeline + max over stages of (tail + gather + optimizer) + T_norm

Every stage is costed by the machinery of uniform strategies, with the machines it runs on; then each replica's pipeline
is simulated with the unequal stages that this gives. Gradients of a layer are reduced over all its holders, at the
speed of the slowest link among them. GPUs of a type are given out in order: replica by replica, stage by stage, the
copies of a stage next to each other (or those of a replica, where the rank order of the plan has data outermost).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.cost.efficiency import Efficiency
from shardwright.cost.footprint import Footprint, Held, footprint, held_parameters
from shardwright.cost.iteration import beside_transfers
from shardwright.cost.lanes import Known, Lane, lanes_of, outermost
from shardwright.cost.layers import OVERLAP_SLOWDOWN
from shardwright.cost.mixed_links import holders, move_seconds
from shardwright.cost.overheads import Calibration
from shardwright.cost.pipeline import Timeline, simulate, timeline
from shardwright.cost.schedule import Order, interleaved, one_f_one_b
from shardwright.cost.step import (
    StageTimes,
    both_gather_seconds,
    exposed_tails,
    norm_seconds,
    optimizer_seconds,
    stage_times,
    tied_embedding_seconds,
)
from shardwright.cost.strategy import (
    Floats,
    Ints,
)
from shardwright.plan.plan import Plan, Replica
from shardwright.spec.cluster import NodePool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTime:
    """One replica: stage times [1, v, P], transfers [v * P - 1] and the simulated pipeline; tails [P] of gradients and
    weights, the optimizer step [P], and the peak of each stage in bytes [P]."""

    stages: StageTimes
    transfers: Floats
    pipeline_seconds: float
    tails: Floats
    gathers: Floats
    optimizer: Floats
    peak_bytes: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """The iteration of a plan and its replicas' parts."""

    seconds: float
    replicas: tuple[ReplicaTime, ...]


def mixed_iteration(
    plan: Plan, efficiency: Efficiency, calibration: Calibration | None = None, *, known: Known | None = None
) -> Mixed:
    """Return the iteration of `plan`. The plan must be a legal one (`plan.check`). `known` keeps layer tables between
    calls for plans of one model, job, cluster and efficiency."""
    pools = {pool.gpu.name: pool for pool in plan.cluster.pools}
    places = _places(plan, pools)
    lanes = [lanes_of(plan, replica, efficiency, calibration, known=known) for replica in plan.replicas]
    found = []
    for index, replica in enumerate(plan.replicas):
        found.append(_replica_time(plan, replica, lanes[index], index, places, pools))
    longest = max(replica.pipeline_seconds for replica in found)
    after = max(float(part.max()) for part in (r.tails for r in found)) + max(float(r.gathers.max()) for r in found)
    update = max(float(replica.optimizer.max()) for replica in found)
    tied = max(float(tied_embedding_seconds(lane[0].context, lane[0].row)[0]) for lane in lanes)
    norm = max(float(norm_seconds(lane.context, lane.row)[0]) for group in lanes for lane in group)
    return Mixed(seconds=longest + after + tied + update + norm, replicas=tuple(found))


def _places(plan: Plan, pools: Mapping[str, NodePool]) -> list[list[int]]:
    """Return the first GPU, within its pool, of each stage of each replica."""
    used = dict.fromkeys(pools, 0)
    places = []
    for replica in plan.replicas:
        row = []
        copies = 1 if outermost(plan) else replica.count
        for stage in replica.stages:
            row.append(used[stage.gpu])
            used[stage.gpu] += copies * stage.gpus
        for stage in replica.stages:
            used[stage.gpu] += (replica.count - copies) * stage.gpus
        places.append(row)
    return places


def _replica_time(
    plan: Plan,
    replica: Replica,
    lanes: list[Lane],
    index: int,
    places: list[list[int]],
    pools: Mapping[str, NodePool],
) -> ReplicaTime:
    starts = stage_starts(replica, plan.schedule.virtual_stages)
    each = {id(lane): _of_lane(lane, starts) for lane in lanes}
    parts = [each[id(lane)].times for lane in lanes]
    times = StageTimes(
        forward=_diagonal([part.forward for part in parts]),
        backward=_diagonal([part.backward for part in parts]),
        recompute=_diagonal([part.recompute for part in parts]),
    )
    moves = np.array([move_seconds(plan, replica, lanes, places[index], stage) for stage in range(len(lanes))])
    vpp = plan.schedule.virtual_stages
    transfers = np.tile(moves, vpp)[: vpp * len(lanes) - 1]
    times = beside_transfers(lanes[0].row, times, transfers[None])
    tails, gathers, updates, peaks = [], [], [], []
    for stage, lane in enumerate(lanes):
        held = each[id(lane)].held
        links, groups = holders(plan, replica, stage, lane, places, pools)
        once = both_gather_seconds(links, groups, held.dense, held.expert, 1.0)
        tail, gather = exposed_tails(lane.context.job, lane.row, times, once)
        tails.append(float(tail[0, stage]))
        gathers.append(float(gather[0, stage]))
        updates.append(float(each[id(lane)].optimizer[0, stage]))
        peaks.append(float(each[id(lane)].peak_bytes[0, stage]))
    return ReplicaTime(
        stages=times,
        transfers=transfers,
        pipeline_seconds=pipeline_seconds(plan, replica, times, transfers),
        tails=np.array(tails),
        gathers=np.array(gathers),
        optimizer=np.array(updates),
        peak_bytes=np.array(peaks),
    )


@dataclass(frozen=True, slots=True)
class _OfLane:
    """Times, parameters, optimizer step and peak memory of every stage if all were like one lane."""

    times: StageTimes
    held: Held
    optimizer: Floats
    peak_bytes: Floats


def _of_lane(lane: Lane, starts: Ints) -> _OfLane:
    held = held_parameters(lane.context, lane.row, lane.shards, starts)
    return _OfLane(
        stage_times(lane.context, lane.row, lane.shards, starts),
        held,
        optimizer_seconds(lane.context, lane.row, held.dense, held.expert),
        stage_footprint(lane, starts).total,
    )


def stage_footprint(lane: Lane, starts: Ints) -> Footprint:
    """Return the memory of every stage if all were like this lane."""
    return footprint(lane.context, lane.row, lane.shards, starts)


def stage_starts(replica: Replica, virtual_stages: int) -> Ints:
    """Return the layer at which each virtual stage starts, [1, v * P + 1]."""
    ranges = [stage.layers[chunk] for chunk in range(virtual_stages) for stage in replica.stages]
    return np.array([[start for start, _ in ranges] + [ranges[-1][1]]], dtype=np.int64)


def _diagonal(parts: list[Floats]) -> Floats:
    """Return stage i of the i-th of arrays [1, v, P]."""
    return np.stack([part[:, :, stage] for stage, part in enumerate(parts)], axis=2)


def pipeline_seconds(plan: Plan, replica: Replica, times: StageTimes, transfers: Floats) -> float:
    """Return the exact time of a replica's pipeline."""
    forward, backward = times.forward.reshape(1, -1), times.backward.reshape(1, -1)
    if len(replica.stages) == 1:
        return float(replica.micro_batches * (forward + backward).sum())
    moves = _moves(plan, transfers)[None]
    done = simulate(_order(plan, replica), forward, backward, moves, blocking=not plan.overlap.pipeline)
    return float(done.makespan_seconds[0])


def pipeline_timeline(plan: Plan, replica: Replica, found: ReplicaTime) -> Timeline:
    """Return when each pass of a replica's micro-batches runs."""
    forward, backward = found.stages.forward.reshape(-1), found.stages.backward.reshape(-1)
    moves = _moves(plan, found.transfers)
    return timeline(_order(plan, replica), forward, backward, moves, blocking=not plan.overlap.pipeline)


def _moves(plan: Plan, transfers: Floats) -> Floats:
    """Return what is left of transfers, which computation hides in part where the plan overlaps them."""
    return (1.0 - OVERLAP_SLOWDOWN) * transfers if plan.overlap.pipeline else transfers


def _order(plan: Plan, replica: Replica) -> Order:
    pp, vpp = len(replica.stages), plan.schedule.virtual_stages
    return one_f_one_b(pp, replica.micro_batches) if vpp == 1 else interleaved(pp, vpp, replica.micro_batches)
