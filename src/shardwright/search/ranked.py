"""The best plans of all kinds of searches in one order, and what they would be were rare plans not doubted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.predict import predict as prediction_of
from shardwright.cost.strategies import Strategies, plan_of_row, row_of
from shardwright.cost.trust.rarity import TYPES, UNREPORTED, doubt, rare_beside
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import PassedOver
from shardwright.rounding import coarse
from shardwright.search.kinds import OneType, Pipelines, Uneven
from shardwright.search.mixed.entry import affordable_value
from shardwright.search.space.axes import pin_words
from shardwright.spec.cluster import Cluster, NodePool


def best_plans(
    results: Sequence[OneType], cluster: Cluster, top: int, mixed: Pipelines | None, uneven: Uneven | None
) -> tuple[tuple[float, ...], tuple[Plan, ...]]:
    """Return the best plans of all searches, those of one type from their rows, with their values. Doubts count in the
    order, not in the values."""
    found = _uniform_plans(results, cluster, top)
    found += [(weighed_value(plan), value, plan) for value, plan in _over_several(mixed, uneven)]
    best = sorted(found, key=lambda item: item[0])[:top]
    return tuple(value for _, value, _ in best), tuple(plan for _, _, plan in best)


def best_values(results: Sequence[OneType], top: int, mixed: Pipelines | None) -> list[float]:
    """Return the `top` least values of the rows of all pools and of pipelines over several types, doubts counted."""
    alone = [value for result in results for value in result.weighed_values]
    return sorted([*alone, *(weighed_value(plan) for _, plan in _over_several(mixed, None))])[:top]


def _over_several(mixed: Pipelines | None, uneven: Uneven | None) -> list[tuple[float, Plan]]:
    """Return the plans of the searches for pipelines and for uneven FSDP that keep the limits, with their values."""
    plans = (*(mixed.outcome.plans if mixed else ()), *(uneven.outcome.plans if uneven else ()))
    return [(value, plan) for plan in plans if (value := affordable_value(plan)) is not None]


def weighed_value(plan: Plan) -> float:
    """Return what the job minimises, the plan's doubt counted; infinite where the plan keeps no limits."""
    value = affordable_value(plan)
    return np.inf if value is None else float(coarse(value * (1.0 + doubt(plan))))


def passed_over(
    results: Sequence[OneType],
    cluster: Cluster,
    mixed: Pipelines | None,
    uneven: Uneven | None,
    value: float,
    first: Plan,
) -> PassedOver | None:
    """Return the best plan, doubts not counted, where it is better than the `first` one, of `value`."""
    least = [(*found, result.context) for result in results if (found := result.found.least) is not None]
    best, row, context = min(least, key=lambda item: item[0], default=(np.inf, None, None))
    over_several, plan = min(_over_several(mixed, uneven), key=lambda item: item[0], default=(np.inf, None))
    if min(best, over_several) >= value:
        return None
    if row is not None and context is not None and best <= over_several:
        plan = costed_plan(context, cluster, row)
    assert plan is not None, "one of both is better"
    switches = rare_beside(plan, first)
    return PassedOver(
        plan=plan,
        saving=1.0 - min(best, over_several) / value,
        switches=switches,
        pins=tuple(_pin(switch.axis, plan) for switch in switches if switch.axis != UNREPORTED),
    )


def _pin(axis: str, plan: Plan) -> str:
    """Return the pin that asks for what a plan has on an axis."""
    if axis == TYPES:
        return pin_words("gpus", (plan.gpus,))
    return pin_words(axis, (getattr(row_of(plan), axis)[0].item(),))


def with_bound(plan: Plan, bound: float | None) -> Plan:
    """Return a plan with seconds that no plan of a search beats, where these are known: not above its own."""
    prediction = plan.prediction
    if prediction is None or bound is None:
        return plan
    return plan.costed(replace(prediction, lower_bound_seconds=min(bound, prediction.iteration_seconds)))


def _uniform_plans(results: Sequence[OneType], cluster: Cluster, top: int) -> list[tuple[float, float, Plan]]:
    """Return the best rows of all pools as plans with their values, doubts counted and not; of equal ones those on
    cheaper machines first."""
    ranked = sorted(
        (weighed, _dollars_per_gpu_hour(result.context.pool), place, rank)
        for place, result in enumerate(results)
        for rank, weighed in enumerate(result.weighed_values)
    )[:top]
    found = [
        (weighed, results[place].context, *results[place].found.ranked[rank]) for weighed, _, place, rank in ranked
    ]
    return [(weighed, value, costed_plan(context, cluster, row)) for weighed, context, value, row in found]


def _dollars_per_gpu_hour(pool: NodePool) -> float:
    dollars = pool.dollars_per_node_hour
    return np.inf if dollars is None else dollars / pool.gpus_per_node


def costed_plan(context: Context, cluster: Cluster, row: Strategies, *, label: str = "") -> Plan:
    """Return the plan of a single row on the machines of `context`, with its prediction."""
    name = context.pool.gpu.name
    plan = plan_of_row(row, context.model, context.job, cluster, name, label=label)
    return plan.costed(prediction_of(plan, context.efficiency, contexts={name: context}))
