"""Stages as lanes: each costed as if its whole pipeline were like it, by the machinery of uniform strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from shardwright.arrays import Array, Ints
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.context import Context, LayerRows, layer_rows, shard_index, sharding_of
from shardwright.cost.frameworks.overheads import Calibration
from shardwright.cost.learned.links import in_use
from shardwright.cost.strategies import Strategies, row_of, stage_row, stage_starts, strategies
from shardwright.plans.placement import machine_sizes
from shardwright.plans.plan import Plan, Stage
from shardwright.records import record
from shardwright.spec.cluster import NodePool
from shardwright.spec.job import Job, dispatcher_of

Known = dict[tuple[object, ...], LayerRows]  # layer tables by GPU type and sharding


@record
class Lanes:
    """Stages of one GPU type, pipeline depth P and sharding, N of them unlike each other or in unlike replicas.

    `rows` and `shards` [N] are those of a pipeline of such stages, `starts` [N, v * P + 1] where the stages of the
    replica begin, `micro_batches` [N] what it takes. They stand for K stages of the plan: `at` [K] among all of its
    stages, `row` [K] here, `rank` [K] in the pipeline.
    """

    context: Context
    rows: Strategies
    shards: LayerRows
    starts: Ints
    micro_batches: Ints
    at: Ints
    row: Ints
    rank: Ints


@record
class Lane:
    """A stage as if its whole pipeline were like it: the context of its machines, the row of its degrees."""

    context: Context
    row: Strategies
    shards: LayerRows


@record(kw_only=False)
class _Members:
    """What lanes are made of, while the stages of a plan are gone through."""

    rows: list[dict[str, object]] = field(default_factory=list)
    starts: list[list[int]] = field(default_factory=list)
    micro_batches: list[int] = field(default_factory=list)
    stages: list[tuple[int, int, int]] = field(default_factory=list)  # at, row, rank


def contexts_of(
    plan: Plan, efficiency: Efficiency, calibration: Calibration | None = None, *, made: Sequence[Context] = ()
) -> dict[str, Context]:
    """Return the context of each GPU type that the plan uses, on the largest pool of it, or on the part of a machine
    that a plan on one type has: one of those `made` before,
    with its layer tables, where it differs in headroom alone. Contexts with measured layers are never reused: some may
    lack times."""
    pools: dict[str, NodePool] = {}
    for pool in plan.cluster.pools:
        name = pool.gpu.name
        if name in plan.gpus_by_type and (name not in pools or pool.gpus > pools[name].gpus):
            pools[name] = pool
    if len(pools) == 1:
        pools = {name: in_use(pool, plan.gpus) for name, pool in pools.items()}
    job, together = _with_one_dispatcher(plan), _in_one_machine(plan)
    contexts: dict[str, Context] = {}
    for name, pool in pools.items():
        given = calibration.of(plan.job.framework, pool.gpu) if calibration else None
        new = Context(
            model=plan.model,
            pool=pool,
            job=job,
            efficiency=efficiency,
            measured_overheads=given,
            one_machine=together,
        )
        alike = (old for old in made if not old.source.only and replace(old, headroom=new.headroom) == new)
        contexts[name] = next(alike, new)
    return contexts


def contexts_together(plans: Sequence[Plan], efficiency: Efficiency) -> list[dict[str, Context]]:
    """Return the contexts of each plan: those that are alike are one, in which layers of uniform plans are timed at
    once."""
    made: list[Context] = []
    rows: dict[int, list[Strategies]] = {}
    contexts = []
    for plan in plans:
        contexts.append(contexts_of(plan, efficiency, made=made))
        made += [new for new in contexts[-1].values() if all(new is not old for old in made)]
        if plan.uniform:
            (context,) = contexts[-1].values()
            rows.setdefault(id(context), []).append(row_of(plan))
    for context in made:
        if len(alike := rows.get(id(context), [])) > 1:
            shard_index(context, Strategies.concatenated(alike))
    return contexts


def _in_one_machine(plan: Plan) -> bool:
    """Return whether the GPUs of a plan, of several types, are in one machine, or all of the cluster are."""
    if plan.cluster.one_machine or not plan.cluster.mixed or len(plan.gpus_by_type) < 2:
        return plan.cluster.one_machine
    return len(machine_sizes(plan)) == 1


def _with_one_dispatcher(plan: Plan) -> Job:
    """Return the job of a plan; where some of its GPUs cannot run the dispatcher that others do, with one for all."""
    gpus = {pool.gpu.name: pool.gpu for pool in plan.cluster.pools if pool.gpu.name in plan.gpus_by_type}
    if len({dispatcher_of(plan.job, (gpu,)) for gpu in gpus.values()}) < 2:
        return plan.job
    return replace(plan.job, options=replace(plan.job.options, dispatcher=dispatcher_of(plan.job, gpus.values())))


def lanes_of(plan: Plan, contexts: Mapping[str, Context], known: Known | None = None) -> list[Lanes]:
    """Return the lanes of all stages of a plan, those of each replica that are alike as one row. `known` keeps layer
    tables between calls."""
    groups: dict[tuple[object, ...], _Members] = {}
    place = 0
    for replica in plan.replicas:
        rows: dict[tuple[object, ...], int] = {}
        starts = stage_starts(replica, plan.schedule.virtual_stages)
        for rank, stage in enumerate(replica.stages):
            kind = (stage.gpu, len(replica.stages), *_degrees(stage))
            members = groups.setdefault(kind, _Members())
            alike = (*kind, stage.recompute)
            if alike not in rows:
                rows[alike] = len(members.rows)
                members.rows.append(stage_row(plan, replica, stage))
                members.starts.append(starts)
                members.micro_batches.append(replica.micro_batches)
            members.stages.append((place, rows[alike], rank))
            place += 1
    known = {} if known is None else known
    return [_lanes(contexts[str(kind[0])], members, known) for kind, members in groups.items()]


def _lanes(context: Context, members: _Members, known: Known) -> Lanes:
    rows = strategies(members.rows)
    key = (context.pool.gpu.name, *(int(column[0]) for column in sharding_of(rows)))
    if key not in known:
        known[key] = layer_rows(context, rows.take(slice(0, 1)))
    at, row, rank = np.array(members.stages, dtype=np.int64).T
    return Lanes(
        context=context,
        rows=rows,
        shards=LayerRows(table=known[key].table, row=np.repeat(known[key].row, len(rows))),
        starts=np.array(members.starts, dtype=np.int64),
        micro_batches=np.array(members.micro_batches, dtype=np.int64),
        at=at,
        row=row,
        rank=rank,
    )


def of_stages(lanes: Sequence[Lanes], values: Sequence[Array]) -> Array:
    """Return what each stage of the plan has in `values` of its lanes, [N, P] or [N, v, P] each, as [S] or [S, v]."""
    gathered = np.empty((sum(len(lane.at) for lane in lanes), *values[0].shape[1:-1]), dtype=values[0].dtype)
    for lane, value in zip(lanes, values, strict=True):
        gathered[lane.at] = value[lane.row, ..., lane.rank]
    return gathered


def of_pipelines(lanes: Sequence[Lanes], values: Sequence[Array]) -> Array:
    """Return what each stage of the plan has in `values` of its lanes, those of whole pipelines, [N] each, as [S]."""
    gathered = np.empty(sum(len(lane.at) for lane in lanes), dtype=values[0].dtype)
    for lane, value in zip(lanes, values, strict=True):
        gathered[lane.at] = value[lane.row]
    return gathered


def lane_of(lanes: Sequence[Lanes], stage: int) -> Lane:
    """Return the lane of one stage of the plan."""
    group = next(lane for lane in lanes if stage in lane.at)
    row = group.row[group.at == stage]
    shards = LayerRows(table=group.shards.table, row=group.shards.row[row])
    return Lane(context=group.context, row=group.rows.take(row), shards=shards)


def _degrees(stage: Stage) -> tuple[int, int, int, int]:
    return stage.tensor_parallel, stage.context_parallel, stage.expert_parallel, stage.expert_tensor_parallel
