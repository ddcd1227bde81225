"""A new plan where machines were lost or gained: at once, from what is known of the plan before.

Tensor parallelism, micro-batch and the switches of a layer stay as they were; replicas, their stages, layers, types and
micro-batches are found anew. Layer times are kept between calls: they differ between clusters of other numbers of
machines only by what waiting for the slowest of them costs, which multiplies them all. Where context or experts were
spread over ranks, degrees of these that suit the machines are searched as they were before, on each type and in meshes
over several. Where every GPU kept a part of the weights (ZeRO-3), shares of uneven FSDP are looked for, too. A full
search (`planner.plan`) may find a better plan, and proves how good it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.compute.efficiency import Efficiency, computes
from shardwright.cost.context import Context, LayerRows, ShardIndex
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.iteration.mixed import Mixed
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.facts import headroom
from shardwright.cost.network.collectives import Fabric
from shardwright.cost.predict import predict
from shardwright.cost.strategies import UNSHARDED, ZERO1
from shardwright.plans.abilities import makers
from shardwright.plans.plan import Plan, Stage
from shardwright.plans.trainer_options import as_own
from shardwright.search.kinds import largest_pools, of_each_maker, search_type
from shardwright.search.mixed.bounds.instance import instances
from shardwright.search.mixed.drafts.draft import costed
from shardwright.search.mixed.heuristics.attempts import drafter
from shardwright.search.mixed.one_mesh import mesh_search
from shardwright.search.mixed.replanning import ReplanTask, quick_plan, remaining
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.settings import USUAL, Setting, Sharing
from shardwright.search.objective import require_fit
from shardwright.search.ranked import costed_plan
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, Value, divisors
from shardwright.search.uneven.search import uneven_fsdp
from shardwright.spec.cluster import Cluster, NodePool

# Layer tables by machines, whatever their number, and links; with the strain of the cluster that they were made for.
Kept = dict[tuple[NodePool, Fabric], tuple[tuple[float, ShardIndex], ...]]
MESH_GAP = 0.02  # part of its bound that the best mesh may be above it, as far as its search gets
ROOM = (1.5, 6.0, 1e6)  # times what the plan before would take on so many GPUs, within which a plan is looked for


def replan(
    previous: Plan,
    cluster: Cluster,
    *,
    kept: Kept | None = None,
    fit: float = 0.9,
    efficiency: Efficiency | None = None,
) -> Plan | None:
    """Return a plan for `cluster` with the model, the job and the settings of `previous`, or None where none fits.
    Uneven FSDP gets the best shares there, and is looked at where weights were sharded among equal GPUs, too. The plan
    is priced as `shardwright train` runs it, which alone goes on when machines come and go.

    `kept` is filled with layer times, and spares making them again: give the same one at every call for the same
    model, job and efficiency.
    """
    require_fit(fit)
    previous = _run_by_train(previous)
    job = previous.job
    kept = {} if kept is None else kept
    model_of_time, room = efficiency or default_efficiency(), headroom(fit, job)
    contexts = largest_pools(
        [
            Context(
                model=previous.model,
                pool=pool,
                job=job,
                efficiency=model_of_time,
                headroom=room,
                one_machine=cluster.one_machine,
            )
            for pool in cluster.pools
            if computes(pool.gpu, job.precision)
        ]
    )
    used = [pool.gpu for pool in previous.cluster.pools if pool.gpu.name in previous.gpus_by_type]
    able = of_each_maker(contexts)
    contexts = next(
        (group for group in able if len(makers([*used, *(context.pool.gpu for context in group)])) < 2), able[0]
    )
    if not contexts:
        return None
    plans = [None if previous.layered else _pipelines(previous, contexts, cluster, kept)]
    plans += _spread_anew(previous, contexts, cluster, plans[0]) if _is_spread(previous) else []
    plans += [_shared_anew(contexts, cluster)] if previous.optimizer.sharding == "zero3" else []
    return min((plan for plan in plans if plan is not None), key=lambda plan: plan.iteration_seconds, default=None)


def _pipelines(previous: Plan, contexts: Sequence[Context], cluster: Cluster, kept: Kept) -> Plan | None:
    """Return the best plan found of replicas with the setting of the one before, None where none fits."""
    for context in contexts:
        context.indexed.extend(_remembered(context, kept))
    setting = _setting(previous, contexts)
    (table,) = tables(contexts, [setting])
    for context in contexts:
        _keep(context, kept)
    made = instances([setting], [table], previous.job.global_batch, Space())
    if not made:
        return None
    task = ReplanTask(
        contexts=tuple(contexts),
        cluster=cluster,
        by=drafter(made[0]),
        rank_order=previous.rank_order,
        known=_known(contexts),
    )
    best = _found(previous, task)
    if best is None:
        return None
    plan, iteration = best
    return plan.costed(predict(plan, contexts[0].efficiency, iteration=iteration))


def _is_spread(plan: Plan) -> bool:
    """Return whether context or experts are spread over ranks by degrees of their own."""
    experts = plan.model.has_experts
    return any(
        stage.context_parallel > 1
        or stage.expert_parallel > 1
        or (experts and stage.expert_tensor_parallel != stage.tensor_parallel)
        for stage in plan.stages
    )


def _spread_anew(
    previous: Plan, contexts: Sequence[Context], cluster: Cluster, best: Plan | None
) -> Iterator[Plan | None]:
    """Yield the best plans of equal replicas, on each type and in meshes over several, with the tensor-parallel degree
    and the micro-batch of the plan before, its context parallelism or a part of it, and whatever expert parallelism."""
    stage = previous.stages[0]
    pins: dict[str, tuple[Value, ...]] = {
        "tp": (stage.tensor_parallel,),
        "micro_batch": (previous.micro_batch,),
        "cp": tuple(int(degree) for degree in divisors(stage.context_parallel, stage.context_parallel)),
        "offload": (previous.optimizer.offload,),
    }
    space, longest = Space(pins=pins), np.inf if best is None else best.iteration_seconds
    for context in contexts:
        least = search_type(context, space, Filters(), 1, 0.0, longest).found.least
        if least is not None:
            longest = min(longest, least[0])
            yield costed_plan(context, cluster, least[1])
    if len(contexts) > 1:
        yield from mesh_search(contexts, cluster, space, Filters(), gap=MESH_GAP, incumbent=longest, top=1).plans


def _shared_anew(contexts: Sequence[Context], cluster: Cluster) -> Plan | None:
    """Return the best shares of uneven FSDP, which are found at once."""
    found = uneven_fsdp(contexts, cluster, Space(), lambda _: True, fewest_types=1)
    return costed(contexts, found.plans[0]) if found.plans else None


def _run_by_train(plan: Plan) -> Plan:
    overlap = replace(plan.overlap, tensor_parallel=False)
    return replace(plan, job=as_own(plan.job), overlap=overlap)


def _found(previous: Plan, task: ReplanTask) -> tuple[Plan, Mixed] | None:
    """Return the better of the plan before, as far as its machines are still there, and of what a search finds."""
    hints = [_composition(task.contexts, replica.stages) for replica in previous.replicas]
    left = remaining(previous, task)
    if left is not None:
        return quick_plan(task, left[1].seconds, hints) or left
    before = previous.prediction.iteration_seconds if previous.prediction else 1.0
    incumbents = [times * before * previous.cluster.gpus / task.cluster.gpus for times in ROOM]
    # What was learned under one incumbent may rule out what another allows, so the last tries begin anew.
    tasks = [task] * len(incumbents) + [replace(task, by=task.by.anew()) for _ in incumbents]
    tried = (
        quick_plan(searching, incumbent, hints) for searching, incumbent in zip(tasks, incumbents * 2, strict=True)
    )
    return next((found for found in tried if found is not None), None)


def _setting(plan: Plan, contexts: Sequence[Context]) -> Setting:
    """Return the setting of a plan; types that it does not use have the degree of its first stage."""
    degrees = {stage.gpu: stage.tensor_parallel for stage in plan.stages}
    usual = plan.stages[0].tensor_parallel
    return Setting(
        tp=tuple(degrees.get(context.pool.gpu.name, usual) for context in contexts),
        micro_batch=plan.micro_batch,
        sequence_parallel=plan.sequence_parallel,
        flash=plan.flash_attention,
        sharing=_sharing(plan),
    )


def _sharing(plan: Plan) -> Sharing:
    """Return how the replicas of a plan share their state. A single one says nothing of it: as is usual."""
    optimizer, overlap = plan.optimizer, plan.overlap
    if plan.data_parallel == 1:
        return replace(USUAL, offload=optimizer.offload)
    return Sharing(
        sharding=ZERO1 if optimizer.distributed else UNSHARDED,
        offload=optimizer.offload,
        overlap_grad=overlap.grad_reduce,
        overlap_param=overlap.param_gather,
    )


def _composition(contexts: Sequence[Context], stages: Sequence[Stage]) -> tuple[int, ...]:
    """Return how many stages a replica has on each type."""
    names = [stage.gpu for stage in stages]
    return tuple(names.count(context.pool.gpu.name) for context in contexts)


def _remembered(context: Context, kept: Kept) -> list[ShardIndex]:
    """Return the layer tables that were kept for such machines."""
    there = kept.get(_key(context), ())
    return [replace(index, table=index.table.scaled(context.strain / strain)) for strain, index in there]


def _keep(context: Context, kept: Kept) -> None:
    """Keep the layer tables that were made for a context: those after the ones that were kept before."""
    before = kept.get(_key(context), ())
    made = context.indexed[len(before) :]
    kept[_key(context)] = (*before, *((context.strain, index) for index in made))


def _key(context: Context) -> tuple[NodePool, Fabric]:
    return replace(context.pool, nodes=1), context.links


def _known(contexts: Sequence[Context]) -> Known:
    """Return the layer tables of all contexts as the exact iteration looks for them."""

    def rows() -> Iterator[tuple[tuple[object, ...], LayerRows]]:
        for context in contexts:
            for index in context.indexed:
                for row, way in enumerate(index.ways):
                    yield (context.pool.gpu.name, *way), LayerRows(table=index.table, row=np.array([row]))

    return dict(rows())
