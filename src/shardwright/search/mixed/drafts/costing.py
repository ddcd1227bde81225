"""What a whole plan takes, and whether it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shardwright.arrays import Floats
from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known, contexts_of
from shardwright.cost.iteration.mixed import Mixed, mixed_iteration
from shardwright.cost.predict import predict
from shardwright.plans.check import check
from shardwright.plans.plan import Plan, RankOrder
from shardwright.rounding import coarse
from shardwright.search.mixed.drafts.draft import Draft, plan_of
from shardwright.spec.cluster import Cluster

ORDERS: tuple[RankOrder, ...] = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")


def under_each_order(
    contexts: Sequence[Context], cluster: Cluster, draft: Draft, known: Known, allowed: Callable[[Plan], bool]
) -> Iterator[tuple[Plan, float | None]]:
    """Yield the legal plans of a draft that are `allowed`, one for each rank order, with the exact seconds of an
    iteration, None where it does not fit."""
    for order in ORDERS:
        plan = plan_of(contexts, cluster, draft, rank_order=order)
        if not check(plan) and allowed(plan):
            yield plan, fitting_seconds(contexts, plan, known)


def costed(contexts: Sequence[Context], plan: Plan, known: Known | None = None) -> Plan:
    """Return a legal plan with its prediction. `known` keeps layer tables between calls."""
    efficiency = contexts[0].efficiency
    return plan.costed(predict(plan, efficiency, known=known, contexts=contexts_of(plan, efficiency, made=contexts)))


def fitting_seconds(contexts: Sequence[Context], plan: Plan, known: Known) -> float | None:
    """Return the exact seconds of an iteration of a legal plan, None where it does not fit in memory."""
    found = fitting(contexts, plan, known)
    return None if found is None else coarse(found.seconds)


def fitting(contexts: Sequence[Context], plan: Plan, known: Known) -> Mixed | None:
    """Return the exact iteration of a legal plan, None where it does not fit in memory."""
    efficiency = contexts[0].efficiency
    found = mixed_iteration(plan, efficiency, known=known, contexts=contexts_of(plan, efficiency, made=contexts))
    return found if fits(contexts, plan, [replica.peak_bytes for replica in found.replicas]) else None


def fits(contexts: Sequence[Context], plan: Plan, peaks: Sequence[Floats]) -> bool:
    """Return whether every stage of a plan stays within its GPU's memory; `peaks` are bytes by replica and stage."""
    limits = {context.pool.gpu.name: context.memory_limit_bytes for context in contexts}
    return all(
        float(peak) <= limits[stage.gpu] * (1.0 + 1e-9)
        for replica, row in zip(plan.replicas, peaks, strict=True)
        for stage, peak in zip(replica.stages, row, strict=True)
    )
