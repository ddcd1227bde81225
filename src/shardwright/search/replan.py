"""A new plan where machines were lost or gained: at once, from what is known of the plan before.

Tensor parallelism, micro-batch and the switches of a layer stay as they were; replicas, their stages, layers, types and
micro-batches are found anew. Layer times are kept between calls: they differ between clusters of other numbers of
machines only by what waiting for the slowest of them costs, which multiplies them all. A full search (`planner.plan`)
may find a better plan, and proves how good it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.context import Context, Sharded, ShardIndex
from shardwright.cost.efficiency import Efficiency, computes
from shardwright.cost.lanes import Known
from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict_mixed import predict_mixed
from shardwright.cost.uncertainty import headroom
from shardwright.plan.plan import Plan, Stage
from shardwright.search.mixed.effort import NO_PROOF
from shardwright.search.mixed.entry import largest_pools
from shardwright.search.mixed.model_tables import tables
from shardwright.search.mixed.search import Problem, search
from shardwright.search.mixed.settings import Setting
from shardwright.search.space import Space
from shardwright.spec.cluster import Cluster, NodePool

Kept = dict[NodePool, Context]  # by machines, whatever their number
TIMES = (
    "forward",
    "backward",
    "compute_forward",
    "compute_backward",
    "core_seconds",
    "tp_seconds",
    "cp_seconds",
    "ep_seconds",
)
ROOM = (1.5, 6.0, 1e6)  # times what the plan before would take on so many GPUs, within which a plan is looked for


def replan(
    previous: Plan,
    cluster: Cluster,
    *,
    kept: Kept | None = None,
    fit: float = 0.8,
    efficiency: Efficiency | None = None,
) -> Plan | None:
    """Return a plan for `cluster` with the model, the job and the settings of `previous`, or None where none fits.

    `kept` is filled with layer times, and spares making them again: give the same one at every call for the same
    model, job and efficiency.
    """
    job, setting = previous.job, _setting(previous)
    kept = {} if kept is None else kept
    model_of_time, room = efficiency or default_efficiency(), headroom(fit, job)
    contexts = largest_pools(
        [
            _context(Context(model=previous.model, pool=pool, job=job, efficiency=model_of_time, headroom=room), kept)
            for pool in cluster.pools
            if computes(pool.gpu, job.precision)
        ]
    )
    if not contexts:
        return None
    found_tables = tables(contexts, [setting])
    known = _known(contexts)
    hints = tuple(_composition(contexts, replica.stages) for replica in previous.replicas)
    problem = Problem(
        tuple(contexts),
        cluster,
        Space(),
        0.01,
        (setting,),
        tuple(found_tables),
        known,
        NO_PROOF,
        hints=hints,
        orders=(previous.rank_order,),
    )
    before = previous.prediction.iteration_seconds if previous.prediction else 1.0
    for times in ROOM:
        found = search(problem, times * before * previous.cluster.gpus / cluster.gpus, lambda plan: True)
        if found.plans:
            plan = found.plans[0][1]
            return plan.costed(predict_mixed(plan, model_of_time, known=known))
    return None


def _setting(plan: Plan) -> Setting:
    tp = plan.replicas[0].stages[0].tensor_parallel
    return Setting(
        tp=tp,
        micro_batch=plan.micro_batch,
        sequence_parallel=plan.sequence_parallel and tp > 1,
        overlap_tp=plan.overlap.tensor_parallel and tp > 1,
    )


def _composition(contexts: Sequence[Context], stages: Sequence[Stage]) -> tuple[int, ...]:
    """Return how many stages a replica has on each type."""
    names = [stage.gpu for stage in stages]
    return tuple(names.count(context.pool.gpu.name) for context in contexts)


def _context(context: Context, kept: Kept) -> Context:
    """Return the context with the layer times of one that was kept, and keep it."""
    key = replace(context.pool, nodes=1)
    before = kept.get(key)
    if before is not None and before.measured is None:
        ratio = context.strain / before.strain
        context.indexed.extend(_scaled(index, ratio) for index in before.indexed)
    kept[key] = context
    return context


def _scaled(index: ShardIndex, by: float) -> ShardIndex:
    times = {name: by * getattr(index.table, name) for name in TIMES}
    return ShardIndex(codes=index.codes, table=replace(index.table, **times))


def _known(contexts: Sequence[Context]) -> Known:
    """Return the layer tables of all contexts as the exact iteration looks for them."""

    def rows() -> Iterator[tuple[tuple[object, ...], Sharded]]:
        for context in contexts:
            for index in context.indexed:
                for row, code in enumerate(index.codes.tolist()):
                    yield (context.pool.gpu.name, code), Sharded(table=index.table, row=np.array([row]))

    return dict(rows())
