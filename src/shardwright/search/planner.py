"""One call from a description to ranked plans, and one from a plan to its evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shardwright.cost.compute.efficiency import Efficiency, computes, peak_flops
from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.fit_probability import headroom
from shardwright.cost.predict import predict as prediction_of
from shardwright.cost.strategies import Strategies, plan_of_row, row_of, stage_starts
from shardwright.errors import SpecError, bad, suggestion
from shardwright.plans.check import position_problems
from shardwright.plans.findings import Cause, Failure, MixedPlans, Rejection, ordered
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Baseline, Evaluation, NoPlan, Ranking, SearchReport
from shardwright.progress import within
from shardwright.search.advice.infeasible import explain
from shardwright.search.advice.nearby import nearby
from shardwright.search.advice.remedies import remedies
from shardwright.search.mixed.entry import (
    Outcome,
    affordable_value,
    dropped,
    largest_pools,
    mixed_search,
    run_by_train,
)
from shardwright.search.mixed.tables.settings import pinned_away
from shardwright.search.objective import Objective
from shardwright.search.rules.filters import Filters
from shardwright.search.rules.rules import Rule
from shardwright.search.space.axes import Space, measurable, runnable
from shardwright.search.uneven.search import EVEN_RULE, away, uneven_fsdp
from shardwright.search.uneven.search import Found as UnevenFound
from shardwright.search.uniform.baselines import Tried, baselines
from shardwright.search.uniform.search import Found, search
from shardwright.spec.cluster import Cluster, NodePool
from shardwright.spec.job import Job
from shardwright.spec.model import Model

MOST_UNEVEN = 3  # plans of uneven FSDP that are costed in full
PIPELINES, UNEVEN = "pipelines over several types", "uneven FSDP over several types"
UNIFORM_SHARE = 0.3  # of a search of several types that its uniform searches take, about
EXPORTABLE = ("megatron",)  # every uniform plan is one that Megatron-LM can be told to run


@dataclass(frozen=True, slots=True)
class _PoolResult:
    context: Context
    tried: tuple[Tried, ...]
    found: Found
    baseline_seconds: float


def plan(
    model: Model,
    cluster: Cluster,
    job: Job,
    *,
    space: Space | None = None,
    rules: Sequence[Rule] = (),
    top: int = 3,
    fit: float = 0.9,
    exportable_to: str | None = None,
    efficiency: Efficiency | None = None,
    gap: float = 0.01,
) -> Ranking:
    """Return the `top` best plans, best first: uniform ones on the machines of any one type of `cluster` and, where it
    has several, those that mix them.

    `space` pins parameters, `rules` drop candidates, `fit` is the probability with which a plan must fit in memory,
    `exportable_to` names a target that must be able to run the plan. On machines of one type the first plan is the
    optimum of the declared space under the cost model; on several types it is within `gap` of it, or as near as the
    `gap` of the search report says, in seconds or dollars. Raises SpecError for input that makes no sense; a search
    without a feasible plan returns a Ranking that says why.
    """
    if exportable_to is not None and exportable_to not in EXPORTABLE:
        raise bad("`exportable_to=`", f"{exportable_to!r} is not a target", suggestion(exportable_to, EXPORTABLE))
    if top < 1:
        raise bad("`top=`", f"{top} plans cannot be given", "ask for 1 or more")
    if not 0.01 <= fit <= 0.99:
        raise bad("`fit=`", f"{fit} is not a probability from 0.01 to 0.99", "0.9 is the default")
    if not 0.0 <= gap <= 1.0:
        raise bad("`gap=`", f"{gap:g} is not a part from 0 to 1", "0.01 or 1% is the default")
    if problems := tuple(position_problems(model, job)):
        raise SpecError(*problems)
    begin = time.perf_counter()
    space, filters = space or Space(), Filters(rules=tuple(rules))
    model_of_time, room = efficiency or default_efficiency(), headroom(fit, job)
    results, able = [], _able(cluster, job)
    alone = 1.0 if len(able) == 1 else UNIFORM_SHARE
    for number, pool in enumerate(able):
        context = Context(model=model, pool=pool, job=job, efficiency=model_of_time, headroom=room)
        with within(alone * number / len(able), alone * (number + 1) / len(able)):
            results.append(_search_pool(context, space, filters, top))
    with within(alone, 1.0):
        mixed = None if exportable_to else _mixed(results, cluster, space, filters, gap, fit, top)
    uneven = None if exportable_to else _uneven(results, cluster, space, filters, fit)
    values, plans = _best_plans(results, cluster, top, mixed, uneven)
    bounds = [*([mixed.outcome.bound] if mixed else []), *([uneven.bound] if uneven else [])]
    bound = min([*values[:1], *bounds], default=np.inf)
    if job.objective == "time":
        plans = tuple(_with_bound(plan, bound) for plan in plans)
    unmixed = () if mixed else tuple(_unmixed(results, space, exportable_to, pipelines=uneven is not None))
    report = _report(results, begin, mixed, uneven, unmixed, values[0] if plans else None, bound)
    shown = _shown_baselines(results, cluster, plans, mixed)
    infeasible: NoPlan | None = None
    if not plans:
        contexts = [result.context for result in results]
        freed = partial(_freed, results, cluster, space, filters, gap, fit) if mixed else _no_plan
        infeasible = explain(contexts, space, filters, report, freed)
    kinds = () if uneven is None else tuple(_kinds(mixed, uneven))
    return Ranking(plans=plans, baselines=shown, search=report, infeasible=infeasible, kinds=kinds)


def with_nearby(
    ranking: Ranking,
    *,
    space: Space | None = None,
    rules: Sequence[Rule] = (),
    fit: float = 0.9,
    efficiency: Efficiency | None = None,
) -> Ranking:
    """Return a ranking with what batches and numbers of machines nearby pay, found as its plans were (`plan`)."""
    if not ranking.plans or ranking.best.job.objective != "time":
        return ranking
    model = ranking.best.model

    def search_for(cluster: Cluster, job: Job) -> Plan | None:
        found = plan(model, cluster, job, space=space, rules=rules, top=1, fit=fit, efficiency=efficiency)
        return found.plans[0] if found.plans else None

    return replace(ranking, nearby=nearby(ranking.best, search_for, partial(predict, efficiency=efficiency)))


def _able(cluster: Cluster, job: Job) -> Sequence[NodePool]:
    """Return the pools whose GPUs compute in the job's precision. Raises SpecError if there are none."""
    able = [pool for pool in cluster.pools if computes(pool.gpu, job.precision)]
    if not able:
        peak_flops(cluster.pools[0].gpu, job.precision)
    return able


def _search_pool(context: Context, space: Space, filters: Filters, top: int) -> _PoolResult:
    begin = time.perf_counter()
    tried, start = baselines(context)
    elapsed = time.perf_counter() - begin
    objective = Objective(model=context.model, job=context.job, pool=context.pool)
    found = search(context, measurable(context, runnable(context, space)), filters, objective, top=top, start=start)
    return _PoolResult(context, tried, found, elapsed)


@dataclass(frozen=True, slots=True)
class _Mixed:
    outcome: Outcome
    seconds: float


def _mixed(
    results: Sequence[_PoolResult], cluster: Cluster, space: Space, filters: Filters, gap: float, fit: float, top: int
) -> _Mixed | None:
    """Return what plans over machines of several types reach, or None where there are none in the space."""
    contexts = [result.context for result in results]
    if len({context.pool.gpu.name for context in contexts}) < 2 or pinned_away(space):
        return None
    begin = time.perf_counter()
    known = [result.found.ranked[0][0] for result in results if result.found.ranked]
    outcome = mixed_search(
        largest_pools(contexts),
        cluster,
        space,
        filters,
        gap=gap,
        fit=fit,
        incumbent=min(known, default=np.inf),
        top=top,
    )
    return _Mixed(outcome, time.perf_counter() - begin)


@dataclass(frozen=True, slots=True)
class _Uneven:
    """What uneven FSDP reaches: costed plans, the one with even shares, and what none beats."""

    plans: tuple[Plan, ...]
    even: Plan | None
    bound: float
    candidates: int
    seconds: float


def _uneven(
    results: Sequence[_PoolResult], cluster: Cluster, space: Space, filters: Filters, fit: float
) -> _Uneven | None:
    """Return what uneven FSDP over machines of several types reaches, or None where there is none in the space."""
    contexts = [result.context for result in results]
    if len({context.pool.gpu.name for context in contexts}) < 2 or away(space):
        return None
    begin, efficiency = time.perf_counter(), contexts[0].efficiency
    contexts = run_by_train(contexts, fit)
    found: UnevenFound = uneven_fsdp(
        largest_pools(contexts), cluster, space, lambda plan: not dropped(plan, contexts, filters)
    )

    def costed(plan: Plan) -> Plan:
        return plan.costed(prediction_of(plan, efficiency))

    return _Uneven(
        plans=tuple(costed(plan) for plan in found.plans[:MOST_UNEVEN]),
        even=None if found.even is None else costed(found.even),
        bound=found.bound,
        candidates=found.costed,
        seconds=time.perf_counter() - begin,
    )


def _kinds(mixed: _Mixed | None, uneven: _Uneven) -> Iterator[Baseline]:
    """Yield the best plan of each kind over machines of several types, and FSDP as it is without shares."""
    pipelines = () if mixed is None else mixed.outcome.plans
    for kind, plans in ((PIPELINES, pipelines), (UNEVEN, uneven.plans), (EVEN_RULE, (uneven.even,))):
        plan = next((plan for plan in plans if plan is not None), None)
        yield Baseline(rule=kind, plan=plan, failure=Failure.DOES_NOT_FIT if plan is None else None)


def _unmixed(
    results: Sequence[_PoolResult], space: Space, exportable_to: str | None, *, pipelines: bool
) -> Iterator[MixedPlans]:
    """Yield why plans that mix the types of a cluster, or `pipelines` alone, were left out, if it has several."""
    if len({result.context.pool.gpu.name for result in results}) > 1:
        yield MixedPlans(settings=pinned_away(space), target=exportable_to or "", pipelines=pipelines)


def _freed(
    results: Sequence[_PoolResult],
    cluster: Cluster,
    space: Space,
    filters: Filters,
    gap: float,
    fit: float,
    job: Job,
    incumbent: float,
) -> Plan | None:
    """Return the best mixed plan for another job, if one is better than `incumbent`."""
    contexts = largest_pools([replace(result.context, job=job) for result in results])
    plans = mixed_search(contexts, cluster, space, filters, gap=gap, fit=fit, incumbent=incumbent, top=1).plans
    return plans[0] if plans else None


def _no_plan(job: Job, incumbent: float) -> Plan | None:
    return None


def _best_plans(
    results: Sequence[_PoolResult], cluster: Cluster, top: int, mixed: _Mixed | None, uneven: _Uneven | None
) -> tuple[tuple[float, ...], tuple[Plan, ...]]:
    """Return the best rows of all pools, and the best plans over several types, as plans with their values."""
    found = _uniform_plans(results, cluster, top)
    several = (*(mixed.outcome.plans if mixed else ()), *(uneven.plans if uneven else ()))
    found += [(value, plan) for plan in several if (value := affordable_value(plan)) is not None]
    best = sorted(found, key=lambda item: item[0])[:top]
    return tuple(value for value, _ in best), tuple(plan for _, plan in best)


def _with_bound(plan: Plan, bound: float) -> Plan:
    found = plan.prediction
    bound = bound if found is None else min(bound, found.iteration_seconds)
    return plan if found is None else plan.costed(replace(found, lower_bound_seconds=bound))


def _uniform_plans(results: Sequence[_PoolResult], cluster: Cluster, top: int) -> list[tuple[float, Plan]]:
    """Return the best rows of all pools as plans with their values; of equal ones those on cheaper machines first."""
    ranked = sorted(
        (value, _dollars_per_gpu_hour(result.context.pool), place, rank)
        for place, result in enumerate(results)
        for rank, (value, _) in enumerate(result.found.ranked)
    )[:top]
    return [
        (value, costed_plan(results[place].context, cluster, results[place].found.ranked[rank][1]))
        for value, _, place, rank in ranked
    ]


def _dollars_per_gpu_hour(pool: NodePool) -> float:
    dollars = pool.dollars_per_node_hour
    return np.inf if dollars is None else dollars / pool.gpus_per_node


def _report(
    results: Sequence[_PoolResult],
    begin: float,
    mixed: _Mixed | None,
    uneven: _Uneven | None,
    unmixed: tuple[MixedPlans, ...],
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
    costed = sum(result.found.costed for result in results)
    if mixed is not None:
        phases["mixed"] = mixed.seconds
        candidates += mixed.outcome.candidates
        costed += mixed.outcome.costed
        if mixed.outcome.candidates > mixed.outcome.costed:
            rejected[Rejection(Cause.NOT_NEEDED)] = mixed.outcome.candidates - mixed.outcome.costed
    if uneven is not None:
        phases["uneven FSDP"] = uneven.seconds
        candidates += uneven.candidates
        costed += uneven.candidates
    by_time = results[0].context.job.objective == "time"
    seconds = time.perf_counter() - begin
    phases["predict"] = max(seconds - sum(phases.values()), 0.0)
    return SearchReport(
        candidates=candidates,
        costed=costed,
        seconds=seconds,
        rejected=ordered(rejected),
        phases=tuple(phases.items()),
        not_covered=mixed.outcome.not_covered if mixed else unmixed,
        gap=_gap(value, bound) if value is not None and (by_time or mixed) else None,
        lower_bound_dollars=bound if value is not None and mixed and not by_time else None,
    )


def _gap(value: float, bound: float) -> float:
    return value / bound - 1.0 if value > bound else 0.0


def _shown_baselines(
    results: Sequence[_PoolResult], cluster: Cluster, plans: Sequence[Plan], mixed: _Mixed | None
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


def _plain(results: Sequence[_PoolResult], cluster: Cluster) -> Iterator[Baseline]:
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


def _whole(mixed: _Mixed) -> Baseline:
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


def predict(plan: Plan, *, efficiency: Efficiency | None = None) -> Plan:
    """Return a plan with its prediction."""
    return plan.costed(prediction_of(plan, efficiency or default_efficiency()))


def evaluate(
    user_plan: Plan,
    *,
    top: int = 1,
    efficiency: Efficiency | None = None,
    space: Space | None = None,
    rules: Sequence[Rule] = (),
) -> Evaluation:
    """Return the prediction of a plan, the best plans for the same model, machines and job that keep the pins of
    `space` and the `rules`, and what would make it fit if it does not."""
    model_of_time = efficiency or default_efficiency()
    degrees = {stage.tensor_parallel for replica in user_plan.replicas for stage in replica.stages}
    space = replace(space or Space(), tp_per_type=len(degrees) > 1)
    best = plan(
        user_plan.model,
        user_plan.cluster,
        user_plan.job,
        space=space,
        rules=rules,
        top=top,
        efficiency=model_of_time,
    )
    mine = predict(user_plan, efficiency=model_of_time)
    if best.plans and best.plans[0].prediction and mine.prediction and user_plan.job.objective == "time":
        bound = min(best.plans[0].prediction.lower_bound_seconds, mine.prediction.iteration_seconds)
        mine = mine.costed(replace(mine.prediction, lower_bound_seconds=bound))
    if not user_plan.uniform:
        return Evaluation(plan=mine, best=best)
    (context,) = contexts_of(user_plan, model_of_time).values()
    starts = stage_starts(user_plan.replicas[0], user_plan.schedule.virtual_stages)
    changes = remedies(context, row_of(user_plan), np.array([starts]))
    return Evaluation(plan=mine, best=best, remedies=tuple(changes))
