"""The account of all searches together: the best plans of all kinds, what they are compared with, what was left out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.predict import predict as prediction_of
from shardwright.cost.strategies import Strategies, plan_of_row, row_of
from shardwright.cost.trust.rarity import TYPES, UNREPORTED, doubt, rare_in
from shardwright.plans.abilities import makers
from shardwright.plans.findings import Cause, MixedPlans, Mixing, Rejection, SeveralMakers, ordered
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Baseline, PassedOver, SearchReport
from shardwright.plans.remedies import Failure
from shardwright.rounding import coarse
from shardwright.search.kinds import OneType, Pipelines, Uneven
from shardwright.search.mixed.entry import affordable_value, of_each_maker
from shardwright.search.mixed.restrictions import lacking
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, pin_words
from shardwright.search.uneven.search import EVEN_RULE
from shardwright.spec.cluster import Cluster, NodePool

PIPELINES, UNEVEN = "pipelines over several types", "uneven FSDP over several types"


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
    results: Sequence[OneType], cluster: Cluster, mixed: Pipelines | None, uneven: Uneven | None, value: float
) -> PassedOver | None:
    """Return the best plan, doubts not counted, where it is better than the first plan, of `value`."""
    least = [(*found, result.context) for result in results if (found := result.found.least) is not None]
    best, row, context = min(least, key=lambda item: item[0], default=(np.inf, None, None))
    over_several, plan = min(_over_several(mixed, uneven), key=lambda item: item[0], default=(np.inf, None))
    if min(best, over_several) >= value:
        return None
    if row is not None and context is not None and best <= over_several:
        plan = costed_plan(context, cluster, row)
    assert plan is not None, "one of both is better"
    switches = rare_in(plan)
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


def with_bound(plan: Plan, bound: float) -> Plan:
    found = plan.prediction
    bound = bound if found is None else min(bound, found.iteration_seconds)
    return plan if found is None else plan.costed(replace(found, lower_bound_seconds=bound))


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


def best_of_kinds(mixed: Pipelines | None, uneven: Uneven) -> Iterator[Baseline]:
    """Yield the best plan of each kind over machines of several types, and FSDP as it is without shares."""
    pipelines = () if mixed is None else mixed.outcome.plans
    for kind, plans in ((PIPELINES, pipelines), (UNEVEN, uneven.outcome.plans), (EVEN_RULE, (uneven.outcome.even,))):
        plan = next((plan for plan in plans if plan is not None), None)
        yield Baseline(rule=kind, plan=plan, failure=Failure.DOES_NOT_FIT if plan is None else None)


def several_types(results: Sequence[OneType]) -> bool:
    """Return whether the machines searched have GPUs of several types."""
    return len({result.context.pool.gpu.name for result in results}) > 1


def left_out(
    results: Sequence[OneType],
    space: Space,
    filters: Filters,
    exportable_to: str | None,
    mixed: Pipelines | None,
    uneven: Uneven | None,
) -> Iterator[MixedPlans | SeveralMakers]:
    """Yield which plans that mix the types of a cluster were left out, and why, if it has several."""
    contexts = [result.context for result in results]
    found = makers(context.pool.gpu for context in contexts)
    if len(found) > 1:
        yield SeveralMakers(found)
    if any(len({context.pool.gpu.name for context in able}) > 1 for able in of_each_maker(contexts)):
        lacks = lacking(contexts, space, filters, one_mesh=exportable_to is not None)
        if lacks:
            yield MixedPlans(lacks, Mixing.UNEQUAL if mixed else Mixing.PIPELINES if uneven else Mixing.ANY)


def report_of(
    results: Sequence[OneType],
    begin: float,
    mixed: Pipelines | None,
    uneven: Uneven | None,
    unmixed: tuple[MixedPlans | SeveralMakers, ...],
    value: float | None,
    bound: float,
) -> SearchReport:
    """Return the account of the searches of all pools together: `value` is that of the best plan, which no plan beats
    `bound` in."""
    rejected: dict[Rejection, int] = {}
    phases: dict[str, float] = {}
    for result in results:
        phases["baselines"] = phases.get("baselines", 0.0) + result.baseline_seconds
        for name, seconds in result.found.phases:
            phases[name] = phases.get(name, 0.0) + seconds
        for reason, count in result.found.rejected:
            rejected[reason] = rejected.get(reason, 0) + count
    candidates = sum(result.found.candidates for result in results)
    costed, unneeded = sum(result.found.costed for result in results), 0
    if mixed is not None:
        phases["mixed"] = mixed.seconds
        candidates += mixed.outcome.candidates
        costed += mixed.outcome.costed
        unneeded += max(mixed.outcome.candidates - mixed.outcome.costed, 0)
    if uneven is not None:
        phases["uneven FSDP"] = uneven.seconds
        candidates += uneven.outcome.candidates
        costed += uneven.outcome.costed
        unneeded += uneven.outcome.candidates - uneven.outcome.costed
    if unneeded:
        rejected[Rejection(Cause.NOT_NEEDED)] = unneeded
    by_time = results[0].context.job.objective == "time"
    seconds = time.perf_counter() - begin
    phases["predict"] = max(seconds - sum(phases.values()), 0.0)
    return SearchReport(
        candidates=candidates,
        costed=costed,
        seconds=seconds,
        rejected=ordered(rejected),
        phases=tuple(phases.items()),
        not_covered=(*unmixed, *(mixed.outcome.not_covered if mixed else ())),
        gap=gap_of(value, bound) if value is not None and (by_time or mixed) else None,
        lower_bound_dollars=bound if value is not None and mixed and not by_time else None,
    )


def gap_of(value: float, bound: float) -> float:
    """Return by what part of a bound a value is above it."""
    return value / bound - 1.0 if value > bound else 0.0


def shown_baselines(
    results: Sequence[OneType], cluster: Cluster, plans: Sequence[Plan], mixed: Pipelines | None
) -> tuple[Baseline, ...]:
    """Return the baselines of the pool of the best plan (of the first pool if there is none); where types can be mixed
    the best plan of each type alone, and the uniform plan over all."""
    if not results:
        return ()
    if mixed is not None:
        return (*_plain(results, cluster), _whole(mixed))
    chosen = results[0]
    for result in results:
        if plans and result.context.pool.gpu.name == plans[0].replicas[0].stages[0].gpu:
            chosen = result
            break
    return tuple(
        Baseline(
            rule=entry.rule,
            plan=None if entry.row is None else costed_plan(chosen.context, cluster, entry.row, label=entry.rule),
            failure=entry.failure,
        )
        for entry in chosen.tried
    )


def _plain(results: Sequence[OneType], cluster: Cluster) -> Iterator[Baseline]:
    for result in results:
        rule = f"the best plan on the {result.context.pool.gpu.name} alone"
        ranked = result.found.ranked
        if ranked:
            yield Baseline(rule=rule, plan=costed_plan(result.context, cluster, ranked[0][1], label=rule))
        else:
            job = result.context.job
            limited = job.deadline_hours is not None or job.budget_dollars is not None
            failure = Failure.DOES_NOT_FIT_OR_KEEP_LIMITS if limited else Failure.DOES_NOT_FIT
            yield Baseline(rule=rule, plan=None, failure=failure)


def _whole(mixed: Pipelines) -> Baseline:
    plan, rule = mixed.outcome.uniform, mixed.outcome.uniform_rule
    if plan is None:
        return Baseline(rule=rule, plan=None, failure=Failure.NOT_ON_ALL_TYPES)
    if affordable_value(plan) is None:
        return Baseline(rule=rule, plan=None, failure=Failure.MISSES_LIMITS)
    return Baseline(rule=rule, plan=plan)


def costed_plan(context: Context, cluster: Cluster, row: Strategies, *, label: str = "") -> Plan:
    """Return the plan of a single row on the machines of `context`, with its prediction."""
    name = context.pool.gpu.name
    plan = plan_of_row(row, context.model, context.job, cluster, name, label=label)
    return plan.costed(prediction_of(plan, context.efficiency, contexts={name: context}))
