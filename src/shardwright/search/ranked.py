"""The best plans of all kinds of searches in one order, and the best of all where another one is preferred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.predict import predict as prediction_of
from shardwright.cost.strategies import Strategies, plan_of_row, row_of
from shardwright.cost.trust.rarity import TYPES, UNREPORTED, rare_beside, rare_in
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import PassedOver
from shardwright.search.kinds import OneType, Pipelines, Uneven, least_value
from shardwright.search.mixed.entry import affordable_value
from shardwright.search.objective import Preference, preference, to_beat
from shardwright.search.space.axes import pin_words
from shardwright.spec.cluster import Cluster, NodePool


def best_plans(
    results: Sequence[OneType],
    cluster: Cluster,
    top: int,
    mixed: Pipelines | None,
    uneven: Uneven | None,
    indifference: float,
) -> tuple[tuple[float, ...], tuple[Plan, ...]]:
    """Return the best plans of all searches, those of one type from their rows, with their values; of those that are
    at most `indifference` above the least, the ones with the fewest rare switches first."""
    over_several = _over_several(mixed, uneven)
    within = _within(results, over_several, indifference)
    best = _uniform_plans(results, cluster, top, within)
    best += [(preference(value, len(rare_in(plan)), within), value, plan) for value, plan in over_several]
    best = sorted(best, key=lambda item: item[0])[:top]
    return tuple(value for _, value, _ in best), tuple(plan for _, _, plan in best)


def value_to_beat(results: Sequence[OneType], top: int, mixed: Pipelines | None, indifference: float) -> float:
    """Return the value above which no plan is among the `top` best of the rows of all pools and of pipelines over
    several types; infinite where there are fewer."""
    over_several = _over_several(mixed, None)
    within = _within(results, over_several, indifference)
    alone = [key for result in results for key, _ in result.preferred(within)[:top]]
    return to_beat([*alone, *(preference(value, 1, within) for value, _ in over_several)], top, within)


def in_order(plans: Sequence[Plan], least: float, indifference: float) -> list[Plan]:
    """Return costed plans in the order of all searches, where `least` is the least value that is known."""
    values = [np.inf if (value := affordable_value(plan)) is None else value for plan in plans]
    within = min([least, *values]) * (1.0 + indifference)
    keys = [preference(value, len(rare_in(plan)), within) for value, plan in zip(values, plans, strict=True)]
    return [plan for _, _, plan in sorted(zip(keys, range(len(plans)), plans, strict=True), key=lambda item: item[:2])]


def _within(results: Sequence[OneType], over_several: Sequence[tuple[float, Plan]], indifference: float) -> float:
    """Return the value up to which plans are as good as the best."""
    return min([least_value(results), *(value for value, _ in over_several)]) * (1.0 + indifference)


def _over_several(mixed: Pipelines | None, uneven: Uneven | None) -> list[tuple[float, Plan]]:
    """Return the plans of the searches for pipelines and for uneven FSDP that keep the limits, with their values."""
    plans = (*(mixed.outcome.plans if mixed else ()), *(uneven.outcome.plans if uneven else ()))
    return [(value, plan) for plan in plans if (value := affordable_value(plan)) is not None]


def passed_over(
    results: Sequence[OneType],
    cluster: Cluster,
    mixed: Pipelines | None,
    uneven: Uneven | None,
    value: float,
    first: Plan,
) -> PassedOver | None:
    """Return the best plan, whatever its rare switches, where it is better than the `first` one, of `value`."""
    least = [(*found, result.context) for result in results if (found := result.found.least) is not None]
    best, row, context = min(least, key=lambda item: item[0], default=(np.inf, None, None))
    over_several, plan = min(_over_several(mixed, uneven), key=lambda item: item[0], default=(np.inf, None))
    if min(best, over_several) >= value:
        return None
    if row is not None and context is not None and best <= over_several:
        plan = costed_plan(context, cluster, row)
    assert plan is not None, "one of both is better"
    return better_than(first, value, plan, min(best, over_several))


def better_than(first: Plan, value: float, plan: Plan, least: float) -> PassedOver:
    """Return a plan of value `least` that the `first` one, of `value`, is preferred to."""
    switches = rare_beside(plan, first)
    return PassedOver(
        plan=plan,
        saving=1.0 - least / value,
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


def _uniform_plans(
    results: Sequence[OneType], cluster: Cluster, top: int, within: float
) -> list[tuple[Preference, float, Plan]]:
    """Return the best rows of all pools as plans with their values; of equal ones those on cheaper machines first."""
    ranked = sorted(
        (key, _dollars_per_gpu_hour(result.context.pool), place, rank)
        for place, result in enumerate(results)
        for rank, (key, _) in enumerate(result.preferred(within))
    )[:top]
    best = []
    for key, _, place, rank in ranked:
        _, entry = results[place].preferred(within)[rank]
        best.append((key, entry.value, costed_plan(results[place].context, cluster, entry.row)))
    return best


def _dollars_per_gpu_hour(pool: NodePool) -> float:
    dollars = pool.dollars_per_node_hour
    return np.inf if dollars is None else dollars / pool.gpus_per_node


def costed_plan(context: Context, cluster: Cluster, row: Strategies, *, label: str = "") -> Plan:
    """Return the plan of a single row on the machines of `context`, with its prediction."""
    name = context.pool.gpu.name
    plan = plan_of_row(row, context.model, context.job, cluster, name, label=label)
    return plan.costed(prediction_of(plan, context.efficiency, contexts={name: context}))
