"""The exact iteration of any plan: replicas of different depth, GPU types and micro-batch counts.

    T = max over replicas of T_pipeline + max over stages of (tail + gather + optimizer) + T_norm

Every stage is costed by the machinery of uniform strategies, with the machines it runs on; then each replica's pipeline
is simulated with the unequal stages that this gives. Gradients of a layer are reduced over all its holders, at the
speed of the slowest link among them. GPUs of a type are given out in order: replica by replica, stage by stage, the
copies of a stage next to each other (or those of a replica, where the rank order of the plan has data outermost).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost.collectives import Fabric, Group, transfer_seconds
from shardwright.cost.context import Context, Sharded, shard_codes, sharded
from shardwright.cost.efficiency import Efficiency
from shardwright.cost.footprint import Footprint, Held, footprint, held_parameters
from shardwright.cost.iteration import beside_transfers
from shardwright.cost.layers import OVERLAP_SLOWDOWN
from shardwright.cost.overheads import Calibration
from shardwright.cost.pipeline import simulate
from shardwright.cost.schedule import interleaved, one_f_one_b
from shardwright.cost.step import (
    DataParallel,
    StageTimes,
    both_gather_seconds,
    data_parallel,
    exposed_tails,
    message_bytes,
    norm_seconds,
    optimizer_seconds,
    stage_times,
    tied_embedding_seconds,
)
from shardwright.cost.strategy import (
    DATA_OUTERMOST,
    RANK_ORDERS,
    RECOMPUTE,
    SHARDING,
    Floats,
    Ints,
    Strategies,
    strategies,
)
from shardwright.plan.plan import Plan, Replica, Stage
from shardwright.spec.cluster import Cluster, NodePool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A stage as if its whole pipeline were like it: the context of its machines and the row of its degrees."""

    context: Context
    row: Strategies
    shards: Sharded


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


Known = dict[tuple[object, ...], Sharded]  # layer tables by GPU type and sharding


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


def outermost(plan: Plan) -> bool:
    """Return whether the GPUs of a copy of a replica stand together, rather than the copies of a stage."""
    return RANK_ORDERS.index(plan.rank_order) == DATA_OUTERMOST


def lanes_of(
    plan: Plan,
    replica: Replica,
    efficiency: Efficiency,
    calibration: Calibration | None = None,
    *,
    known: Known | None = None,
) -> list[Lane]:
    """Return the lane of each stage; stages that are alike share one."""
    pools = {pool.gpu.name: pool for pool in plan.cluster.pools}
    known = {} if known is None else known
    made: dict[Stage, Lane] = {}
    for stage in replica.stages:
        alike = replace(stage, layers=())
        if alike not in made:
            made[alike] = _lane(plan, replica, stage, pools, efficiency, calibration, known)
    return [made[replace(stage, layers=())] for stage in replica.stages]


def _lane(
    plan: Plan,
    replica: Replica,
    stage: Stage,
    pools: Mapping[str, NodePool],
    efficiency: Efficiency,
    calibration: Calibration | None,
    known: Known,
) -> Lane:
    """Return the lane of a stage. All data-parallel copies of the plan share the state of a layer, so the row has them
    all, and the job as many samples as would give each of them this replica's micro-batches."""
    copies = plan.data_parallel
    job = replace(plan.job, global_batch=replica.micro_batches * plan.micro_batch * copies)
    pool = pools[stage.gpu]
    given = calibration.of(job.framework, pool.gpu) if calibration else None
    context = Context(model=plan.model, pool=pool, job=job, efficiency=efficiency, measured_overheads=given)
    first, last = replica.stages[0].layers[0], replica.stages[-1].layers[-1]
    row = strategies(
        [
            {
                "tp": stage.tensor_parallel,
                "cp": stage.context_parallel,
                "ep": stage.expert_parallel,
                "etp": stage.expert_tensor_parallel,
                "pp": len(replica.stages),
                "dp": copies,
                "vpp": plan.schedule.virtual_stages,
                "micro_batch": plan.micro_batch,
                "rank_order": RANK_ORDERS.index(plan.rank_order),
                "sequence_parallel": plan.sequence_parallel and stage.tensor_parallel > 1,
                "flash": plan.flash_attention,
                "overlap_tp": plan.overlap.tensor_parallel and stage.tensor_parallel > 1,
                "overlap_pp": plan.overlap.pipeline,
                "first_layers": first[1] - first[0],
                "last_layers": last[1] - last[0],
                "recompute": RECOMPUTE.index(stage.recompute.method or stage.recompute.granularity),
                "recompute_layers": stage.recompute.layers or 0,
                "sharding": SHARDING.index(plan.optimizer.sharding),
                "offload": plan.optimizer.offload,
                "overlap_grad": plan.overlap.grad_reduce,
                "overlap_param": plan.overlap.param_gather,
            }
        ]
    )
    key = (stage.gpu, int(shard_codes(row)[0]))
    if key not in known:
        known[key] = sharded(context, row)
    return Lane(context=context, row=row, shards=known[key])


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
    moves = np.array([_move(plan, replica, lanes, places[index], stage) for stage in range(len(lanes))])
    vpp = plan.schedule.virtual_stages
    transfers = np.tile(moves, vpp)[: vpp * len(lanes) - 1]
    times = beside_transfers(lanes[0].row, times, transfers[None])
    tails, gathers, updates, peaks = [], [], [], []
    for stage, lane in enumerate(lanes):
        held = each[id(lane)].held
        links, groups = _holders(plan, replica, stage, lane, places, pools)
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


def _move(plan: Plan, replica: Replica, lanes: list[Lane], places: list[int], stage: int) -> float:
    """Return the seconds of a message from a stage to the next one (the last: to the first). The side with fewer
    tensor-parallel ranks sends or receives more on each."""
    here, there = lanes[stage], lanes[(stage + 1) % len(lanes)]
    size = max(float(message_bytes(lane.context, lane.row)[0]) for lane in (here, there))
    mine, other = here.context.pool, there.context.pool
    if mine is other or mine.gpu.name == other.gpu.name:
        domain = mine.domain_gpus
        crosses = places[stage] // domain != places[(stage + 1) % len(lanes)] // domain
        return float(transfer_seconds(here.context.links, np.array([size]), np.array([crosses]))[0])
    seconds = [
        float(transfer_seconds(lane.context.links, np.array([size]), np.array([True]))[0]) for lane in (here, there)
    ]
    talking = replica.count * min(int(here.row.tp[0]), int(there.row.tp[0]))
    return max(*seconds, *(size * talking / rate + delay for rate, delay in _site_link(plan.cluster, mine, other)))


def _site_link(cluster: Cluster, one: NodePool, other: NodePool) -> Iterator[tuple[float, float]]:
    """Yield bandwidth and latency of the link between the sites of two pools, if they stand at different ones."""
    for link in cluster.site_links:
        if one.site != other.site and set(link.sites) == {one.site, other.site}:
            yield link.bytes_per_second, link.latency_seconds


def _holders(
    plan: Plan, replica: Replica, stage: int, lane: Lane, places: list[list[int]], pools: Mapping[str, NodePool]
) -> tuple[Fabric, DataParallel]:
    """Return the slowest links among the holders of a stage's layers, and the groups that reduce them."""
    ranges = replica.stages[stage].layers
    holders = [
        (other, place, first)
        for other, row in zip(plan.replicas, places, strict=True)
        for place, first in zip(other.stages, row, strict=True)
        if place.layers == ranges
        or any(low < end and start < high for low, high in place.layers for start, end in ranges)
    ]
    own = lane.context
    if len(plan.replicas) == 1 and {place.gpu for _, place, _ in holders} == {own.pool.gpu.name}:
        return own.links, data_parallel(own, lane.row)
    everyone = [replace(own, pool=pools[place.gpu]).links for _, place, _ in holders]
    links = min(everyone, key=lambda fabric: fabric.inter_bytes_per_second)
    links = replace(
        links,
        intra_bytes_per_second=min(fabric.intra_bytes_per_second for fabric in everyone),
        inter_latency_seconds=max(fabric.inter_latency_seconds for fabric in everyone),
    )
    for _, place, _ in holders:
        for rate, delay in _site_link(plan.cluster, own.pool, pools[place.gpu]):
            slower = min(links.inter_bytes_per_second, rate / plan.gpus)
            links = replace(links, inter_bytes_per_second=slower, inter_latency_seconds=delay)
    size = sum(other.count * place.context_parallel for other, place, _ in holders)
    machines: Counter[tuple[str, int]] = Counter()
    for other, place, first in holders:
        stride = sum(one.gpus for one in other.stages if one.gpu == place.gpu) if outermost(plan) else place.gpus
        at = (first + stride * np.arange(other.count)) // pools[place.gpu].domain_gpus
        machines.update((place.gpu, int(machine)) for machine in at for _ in range(place.context_parallel))
    local = min(machines.values())
    dense = Group(size=np.array([size]), local=np.array([max(min(local, size), 1)]))
    width = replica.stages[stage].expert_parallel * replica.stages[stage].expert_tensor_parallel
    ranks = max(size * replica.stages[stage].tensor_parallel // width, 1)
    expert = Group(size=np.array([ranks]), local=np.array([np.clip(own.pool.domain_gpus // width, 1, ranks)]))
    return links, DataParallel(dense=dense, expert=expert)


def pipeline_seconds(plan: Plan, replica: Replica, times: StageTimes, transfers: Floats) -> float:
    """Return the exact time of a replica's pipeline."""
    pp, vpp = len(replica.stages), plan.schedule.virtual_stages
    forward, backward = times.forward.reshape(1, -1), times.backward.reshape(1, -1)
    if pp == 1:
        return float(replica.micro_batches * (forward + backward).sum())
    moves = transfers[None]
    if plan.overlap.pipeline:
        moves = (1.0 - OVERLAP_SLOWDOWN) * moves
    order = one_f_one_b(pp, replica.micro_batches) if vpp == 1 else interleaved(pp, vpp, replica.micro_batches)
    done = simulate(order, forward, backward, moves, blocking=not plan.overlap.pipeline)
    return float(done.makespan_seconds[0])
