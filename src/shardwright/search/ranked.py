"""The best plans of all searches in one order, of all options of the trainer, and what the best is shown beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.predict import predict as prediction_of
from shardwright.cost.strategies import Strategies, plan_of_row, row_of
from shardwright.cost.trust.rarity import TYPES, UNREPORTED, rare_beside, rare_in
from shardwright.plans.findings import Failure, Rejection, ordered
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Baseline, PassedOver, Ranking, SearchReport, Usual
from shardwright.search.account import gap_of
from shardwright.search.kinds import OneType, least_value
from shardwright.search.objective import Preference, affordable_value, preference, to_beat
from shardwright.search.space.axes import pin_words
from shardwright.spec.cluster import Cluster, NodePool

if TYPE_CHECKING:
    from shardwright.search.several import Pipelines, Uneven

PIPELINES, UNEVEN = "pipelines over several types", "uneven FSDP over several types"


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


def usual_beside(first: Plan, usual: Plan) -> Usual:
    """Return the best plan without rare switches beside the `first` one, which has some."""
    pins = tuple(_pin(switch.axis, usual) for switch in rare_beside(first, usual))
    return Usual(plan=usual, loss=_value(usual) / _value(first) - 1.0, pins=pins)


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
    return np.inf if dollars is None else dollars / pool.gpus_of_machine


def costed_plan(context: Context, cluster: Cluster, row: Strategies, *, label: str = "") -> Plan:
    """Return the plan of a single row on the machines of `context`, with its prediction."""
    name = context.pool.gpu.name
    plan = plan_of_row(row, context.model, context.job, cluster, name, label=label)
    return plan.costed(prediction_of(plan, context.efficiency, contexts={name: context}))


def best_of(rankings: Sequence[Ranking], top: int) -> Ranking:
    """Return the ranking of the combination whose best plan is best, with the `top` best plans of all and the account
    of all searches; where none has a plan, the first. Plans that are as good are ordered as in each ranking."""
    if len(rankings) == 1:
        return rankings[0]
    indifference = rankings[0].search.indifference
    plans = list(dict.fromkeys(plan for ranking in rankings for plan in ranking.plans))
    every = [*plans, *(ranking.passed_over.plan for ranking in rankings if ranking.passed_over)]
    plans = in_order(plans, min(map(_value, every), default=np.inf), indifference)
    first = next((ranking for ranking in rankings if plans and plans[0] in ranking.plans), rankings[0])
    report = replace(_together([ranking.search for ranking in rankings]), not_covered=first.search.not_covered)
    if not first.plans:
        return replace(first, search=report)
    bound, value = min(_bound(ranking) for ranking in rankings if ranking.plans), _value(plans[0])
    fastest = min(every, key=_value)
    passed = better_than(plans[0], value, fastest, _value(fastest)) if _value(fastest) < value else None
    plans = plans[:top]
    if any(ranking.search.gap is not None for ranking in rankings):
        report = replace(report, gap=gap_of(value, bound))
    if any(ranking.search.lower_bound_dollars is not None for ranking in rankings):
        report = replace(report, lower_bound_dollars=bound)
    if plans[0].job.objective == "time":
        plans = [with_bound(plan, bound) for plan in plans]
    return replace(first, plans=tuple(plans), search=report, passed_over=passed)


def _value(plan: Plan) -> float:
    value = affordable_value(plan)
    return np.inf if value is None else value


def _bound(ranking: Ranking) -> float:
    """Return what no plan of a search that found one beats in what the job minimises."""
    best, dollars = ranking.best, ranking.search.lower_bound_dollars
    if best.job.objective == "time" and best.prediction is not None:
        return best.prediction.lower_bound_seconds or 0.0
    return affordable_value(best) or np.inf if dollars is None else dollars


def _together(reports: Sequence[SearchReport]) -> SearchReport:
    rejected: Counter[Rejection] = Counter()
    phases: Counter[str] = Counter()
    for report in reports:
        rejected.update(dict(report.rejected))
        phases.update(dict(report.phases))
    return SearchReport(
        candidates=sum(report.candidates for report in reports),
        costed=sum(report.costed for report in reports),
        seconds=sum(report.seconds for report in reports),
        rejected=ordered(rejected),
        phases=tuple(phases.items()),
        interrupted=any(report.interrupted for report in reports),
        indifference=reports[0].indifference,
    )


def best_of_kinds(mixed: Pipelines | None, uneven: Uneven) -> Iterator[Baseline]:
    """Yield the best plan of each kind over machines of several types, and FSDP as it is without shares."""
    pipelines, fsdp = () if mixed is None else mixed.outcome.plans, uneven.outcome
    for kind, plans in ((PIPELINES, pipelines), (UNEVEN, fsdp.plans), (fsdp.even_rule, (fsdp.even,))):
        plan = next((plan for plan in plans if plan is not None), None)
        yield Baseline(rule=kind, plan=plan, failure=Failure.DOES_NOT_FIT if plan is None else None)


def several_types(results: Sequence[OneType]) -> bool:
    """Return whether the machines searched have GPUs of several types."""
    return len({result.context.pool.gpu.name for result in results}) > 1


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
        if plans and result.context.pool.gpu.name == plans[0].stages[0].gpu:
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
