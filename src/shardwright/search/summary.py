"""The account of all searches together: the best plans of all kinds, what they are compared with, what was left out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.predict import predict as prediction_of
from shardwright.cost.strategies import Strategies, plan_of_row
from shardwright.cost.trust.rarity import rare_in
from shardwright.plans.abilities import makers
from shardwright.plans.findings import Cause, MixedPlans, Mixing, Rejection, SeveralMakers, ordered
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Baseline, PassedOver, SearchReport
from shardwright.plans.remedies import Failure
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
    """Return the best rows of all pools, and the best plans of unequal replicas, as plans with their values. Doubts
    count in the order, not in the values."""
    found = _uniform_plans(results, cluster, top)
    several = (*(mixed.outcome.plans if mixed else ()), *(uneven.outcome.plans if uneven else ()))
    found += [(value, value, plan) for plan in several if (value := affordable_value(plan)) is not None]
    best = sorted(found, key=lambda item: item[0])[:top]
    return tuple(value for _, value, _ in best), tuple(plan for _, _, plan in best)


def best_values(results: Sequence[OneType], top: int, mixed: Pipelines | None) -> list[float]:
    """Return the `top` least values of the rows of all pools and of pipelines over several types, doubts counted."""
    several = map(affordable_value, mixed.outcome.plans if mixed else ())
    alone = [value for result in results for value in result.weighed_values]
    return sorted([*alone, *(value for value in several if value is not None)])[:top]


def passed_over(results: Sequence[OneType], cluster: Cluster, value: float) -> PassedOver | None:
    """Return the best uniform plan, doubts not counted, where it is better than the first plan, of `value`."""
    least = [(*found, result.context) for result in results if (found := result.found.least) is not None]
    best, row, context = min(least, key=lambda item: item[0], default=(np.inf, None, None))
    if row is None or context is None or best >= value:
        return None
    switches = rare_in(row)
    return PassedOver(
        plan=costed_plan(context, cluster, row),
        saving=1.0 - best / value,
        switches=switches,
        pins=tuple(pin_words(switch.axis, (getattr(row, switch.axis)[0].item(),)) for switch in switches),
    )


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
        gap=_gap(value, bound) if value is not None and (by_time or mixed) else None,
        lower_bound_dollars=bound if value is not None and mixed and not by_time else None,
    )


def _gap(value: float, bound: float) -> float:
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
