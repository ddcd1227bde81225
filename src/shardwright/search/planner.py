"""One call from a description to ranked plans, and one from a plan to its evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.cost.compute.efficiency import Efficiency, computes, peak_flops
from shardwright.cost.compute.flops import job_flops
from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import contexts_together
from shardwright.cost.learned import default_efficiency
from shardwright.cost.learned.links import in_use
from shardwright.cost.memory.facts import headroom
from shardwright.cost.predict import predict as prediction_of
from shardwright.cost.site.calibrated import Calibrated, anchored, without_site
from shardwright.cost.trust.rarity import rare_in, switches_for
from shardwright.errors import bad, reject
from shardwright.plans.abilities import job_problems
from shardwright.plans.check import position_problems
from shardwright.plans.findings import NothingAsFast, Stopped
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Baseline, Fewer, NoPlan, Ranking
from shardwright.plans.trainable import own_job_problems, own_problems, untrainable_sizes
from shardwright.plans.trainer_options import option_problems
from shardwright.progress import stopped, within
from shardwright.search.account import left_out, report_of
from shardwright.search.kinds import EXPORTABLE, Asked, OneType, largest_pools, parts_of, search_type
from shardwright.search.nearby import fewer_machines, nearby
from shardwright.search.objective import INDIFFERENCE, affordable_value, require_fit, require_indifference
from shardwright.search.ranked import (
    best_of,
    best_of_kinds,
    best_plans,
    passed_over,
    several_types,
    shown_baselines,
    usual_beside,
    value_to_beat,
    with_bound,
)
from shardwright.search.rules.filters import Filters
from shardwright.search.rules.rules import Rule, rules_against
from shardwright.search.space.axes import Space, as_needed, jobs_of
from shardwright.search.space.parameters import AXES
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model

if TYPE_CHECKING:
    from shardwright.search.replan import Kept
    from shardwright.search.several import Pipelines, Uneven
    from shardwright.synthesis.graph import Graph
    from shardwright.synthesis.program import Program

GAP = 0.01  # part of its bound that the best plan of several types may be above it
USUAL_WITHIN = 10.0  # times the seconds of the best plan: one of usual switches beyond is of no interest
UNIFORM_SHARE = 0.3  # of a search of several types that its uniform searches take, about


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
    gap: float = GAP,
    indifference: float = INDIFFERENCE,
    longest: float = np.inf,
) -> Ranking:
    """Return the `top` best plans, best first: uniform ones on the machines of any one type of `cluster`; where it has
    several, those that mix them; where `train` runs the job, those of unequal replicas.

    `space` pins parameters and options, of which each combination is a search of its own; `rules` drop candidates,
    `fit` is the probability with which a plan must fit in memory. `exportable_to` names a target that must be able to
    run the plan: Megatron-LM has meshes of ranks over several types, every other one plans on machines of one type.
    Where all replicas are equal on machines of one
    type the first plan is the optimum of the declared space under the cost model; else it is within `gap` of it, or as
    near as the `gap` of the search report says, in seconds or dollars. Of plans up to `indifference`, a part of the
    objective, above the best, the one with the fewest switches that hardly any published run has comes first
    (`cost.trust.rarity`); `passed_over` is the best then, and the gap says by how much. Plans that take more than
    `longest` seconds an iteration are of no interest, which shortens the search. The calibration of a site in
    `efficiency` moves the seconds of what was found, all alike, and not what is found. Raises SpecError for input that
    makes no sense; a search without a feasible plan returns a Ranking that says why. Inside `progress.until` the search
    ends early once it is told to, with the best plan so far and a gap that holds all the same
    (`SearchReport.interrupted`).
    """
    if top < 1:
        raise bad("`top=`", f"must be at least 1, not {top}", "3 is the default")
    require_fit(fit)
    if not 0.0 <= gap <= 1.0:
        raise bad("`gap=`", f"must be a fraction from 0 to 1, not {gap:g}", "0.01 or 1% is the default")
    require_indifference(indifference)
    space = space or Space()
    asked = Asked(
        cluster=cluster,
        space=replace(space, options={}),
        filters=Filters(rules=tuple(rules)),
        gap=gap,
        indifference=indifference,
        fit=fit,
        longest=longest,
    )
    base = without_site(efficiency)
    rankings = [_with_parts(model, variant, asked, top, exportable_to, base) for variant in jobs_of(job, space.options)]
    ranking = best_of(rankings, top)
    return _on_site(ranking, efficiency) if isinstance(efficiency, Calibrated) else ranking


def _with_parts(
    model: Model, job: Job, asked: Asked, top: int, exportable_to: str | None, efficiency: Efficiency | None
) -> Ranking:
    """Return the best plans of a job whose options are settled, those on part of a machine by themselves where that has
    faster links than the whole: their seconds are those of the part."""
    whole = _plan(model, job, asked, top, exportable_to, efficiency)
    longest = asked.longest
    if whole.plans and job.objective == "time":
        longest = min(longest, whole.best.iteration_seconds * (1.0 + asked.indifference))
    contexts = largest_pools(contexts_for(model, asked.cluster, job, asked.fit, efficiency))
    parts = [context.pool for context in parts_of(contexts)]
    least = job_flops(model, job) / longest  # FLOPs per second
    parts = [part for part in parts if part.gpus * peak_flops(part.gpu, job.precision) > least]
    alike = not whole.plans and job.deadline_hours is None and job.budget_dollars is None and longest == np.inf
    if not parts or whole.search.interrupted or alike:  # what does not fit the whole fits no part
        return whole
    rankings = [whole]
    for part in parts:
        alone = replace(asked, cluster=Cluster(pools=(part,)), longest=longest)
        rankings.append(_plan(model, job, alone, top, exportable_to, efficiency))
    there = partial(_on_cluster, cluster=asked.cluster, efficiency=efficiency)
    best = best_of([_keeping_limits(_each_plan(ranking, there)) for ranking in rankings], top)
    return replace(
        best,
        baselines=whole.baselines,
        kinds=whole.kinds,
        search=replace(best.search, not_covered=whole.search.not_covered),
    )


def _on_cluster(plan: Plan, cluster: Cluster, efficiency: Efficiency | None) -> Plan:
    """Return a plan on machines that are a part of `cluster`, on `cluster`; where it has a part of a machine, at the
    speed of that."""
    pools = [pool for pool in cluster.pools if pool.gpu.name in plan.gpus_by_type]
    if plan.cluster == cluster and all(in_use(pool, plan.gpus) == pool for pool in pools):
        return plan
    there = predict(replace(plan, cluster=cluster), efficiency=efficiency)
    return with_bound(there, plan.predicted.lower_bound_seconds)


def _keeping_limits(ranking: Ranking) -> Ranking:
    """Return a ranking without plans that miss a limit: the whole machine fails more often than a part of it."""
    return replace(ranking, plans=tuple(plan for plan in ranking.plans if affordable_value(plan) is not None))


def _plan(
    model: Model, job: Job, asked: Asked, top: int, exportable_to: str | None, efficiency: Efficiency | None
) -> Ranking:
    """Return the best plans for a job whose options are settled (`plan`)."""
    untrainable = (*own_job_problems(model, job), *untrainable_sizes(model, job))
    reject([*position_problems(model, job), *option_problems(model, job), *untrainable])
    begin = time.perf_counter()
    cluster, filters, indifference, longest = asked.cluster, asked.filters, asked.indifference, asked.longest
    over_several = replace(asked, space=as_needed(asked.space, model, job))
    space = over_several.space
    results, able = [], contexts_for(model, cluster, job, asked.fit, efficiency)
    alone = 1.0 if len(able) == 1 else UNIFORM_SHARE
    for number, context in enumerate(able):
        with within(alone * number / len(able), alone * (number + 1) / len(able)):
            results.append(search_type(context, space, filters, top, indifference, longest))
    with within(alone, 1.0):
        mixed, uneven = _beyond_one_type(results, over_several, top, exportable_to)
    values, plans = best_plans(results, cluster, top, mixed, uneven, indifference)
    bounds = [*([mixed.outcome.bound] if mixed else []), *([uneven.outcome.bound] if uneven else [])]
    bounds += [least[0] for result in results if (least := result.found.least) is not None]
    bounds += [result.found.unseen for result in results]
    bound = min([*values[:1], *bounds], default=np.inf)
    if job.objective == "time":
        plans = tuple(with_bound(plan, bound) for plan in plans)
    not_covered = tuple(left_out(results, space, filters, exportable_to, mixed, uneven))
    value, interrupted = values[0] if plans else None, stopped()
    report = report_of(results, begin, mixed, uneven, not_covered, value, bound, indifference, interrupted=interrupted)
    shown = shown_baselines(results, cluster, plans, mixed if several_types(results) else None)
    infeasible: NoPlan | None = None
    if not plans and (interrupted or longest < np.inf):
        infeasible = NoPlan(reason=Stopped() if interrupted else NothingAsFast(longest), remedies=())
    elif not plans:
        from shardwright.search.infeasible import explain  # most searches find a plan

        contexts = [result.context for result in results]
        freed = partial(_without_limits, results, over_several) if mixed else lambda *_: None
        infeasible = explain(contexts, asked.space, filters, report, freed)
    kinds = () if uneven is None else tuple(best_of_kinds(mixed, uneven))
    return Ranking(
        plans=plans,
        baselines=shown,
        search=report,
        infeasible=infeasible,
        kinds=kinds,
        passed_over=passed_over(results, cluster, mixed, uneven, values[0], plans[0]) if plans else None,
    )


def _beyond_one_type(
    results: Sequence[OneType], asked: Asked, top: int, exportable_to: str | None
) -> tuple[Pipelines | None, Uneven | None]:
    """Return what pipelines and what uneven FSDP over several types reach; on one type, where `train` runs the job,
    pipelines of unequal replicas. None where there are no such plans."""
    if len(results) == 1 and results[0].context.job.framework != OWN:
        return None, None
    from shardwright.search.several import search_pipelines, search_uneven, with_equal_shares  # not for one type

    one_mesh = exportable_to is not None
    joins = exportable_to is None or exportable_to in EXPORTABLE
    mixed = search_pipelines(results, asked, top, one_mesh=one_mesh) if joins else None
    mixed = with_equal_shares(results, asked, top, mixed)
    enough = value_to_beat(results, top, mixed, asked.indifference)
    return mixed, None if one_mesh else search_uneven(results, asked, enough)


def _without_limits(results: Sequence[OneType], asked: Asked, job: Job, incumbent: float) -> Plan | None:
    """Return the best mixed plan for another job, if one is better than `incumbent`."""
    from shardwright.search.several import without_limits

    return without_limits(results, asked, job, incumbent)


def _on_site(ranking: Ranking, efficiency: Calibrated) -> Ranking:
    """Return a ranking on the site of `efficiency`: all its plans are moved as the best one is."""
    if not ranking.plans:
        return ranking
    best = predict(ranking.best, efficiency=efficiency)
    here = anchored(efficiency, best)

    def moved(plan: Plan) -> Plan:
        there = predict(plan, efficiency=here)
        bound, effect = plan.predicted.lower_bound_seconds, there.predicted.site
        return there if bound is None or effect is None else with_bound(there, bound * effect.factor)

    return replace(_each_plan(ranking, moved), search=replace(ranking.search, lower_bound_dollars=None))


def _each_plan(ranking: Ranking, moved: Callable[[Plan], Plan]) -> Ranking:
    """Return a ranking with all of its plans `moved`."""

    def of_rule(item: Baseline) -> Baseline:
        return item if item.plan is None else replace(item, plan=moved(item.plan))

    beside = ranking.passed_over
    return replace(
        ranking,
        plans=tuple(map(moved, ranking.plans)),
        baselines=tuple(map(of_rule, ranking.baselines)),
        kinds=tuple(map(of_rule, ranking.kinds)),
        passed_over=None if beside is None else replace(beside, plan=moved(beside.plan)),
    )


def with_nearby(
    ranking: Ranking,
    *,
    space: Space | None = None,
    rules: Sequence[Rule] = (),
    fit: float = 0.9,
    exportable_to: str | None = None,
    efficiency: Efficiency | None = None,
) -> Ranking:
    """Return a ranking with what batches and numbers of machines nearby pay, found as its plans were (`plan`), with
    experts placed as in the best plan: what is told is true, and another placement might pay more."""
    if not ranking.plans or ranking.best.job.objective != "time" or ranking.search.interrupted:
        return ranking
    space = _as_experts_are_placed(space or Space(), ranking.best)
    time_of = anchored(efficiency, ranking.best)
    same: dict[str, Any] = {"rules": rules, "fit": fit, "exportable_to": exportable_to, "efficiency": time_of}
    same["indifference"] = ranking.search.indifference

    def best(cluster: Cluster, job: Job, longest: float) -> Plan | None:
        if isinstance(time_of, Calibrated):  # the search counts seconds without the site
            longest = np.inf
        faster = plan(ranking.best.model, cluster, job, space=space, top=1, longest=longest, **same)
        return faster.plans[0] if faster.plans else None

    return replace(ranking, nearby=nearby(ranking.best, best))


def _as_experts_are_placed(space: Space, best: Plan) -> Space:
    """Return a space with the expert and context parallelism of a plan as pins, where the model has experts: their
    degrees are most of its space."""
    if not best.model.has_experts:
        return space
    degrees = {
        "cp": {stage.context_parallel for stage in best.stages},
        "ep": {stage.expert_parallel for stage in best.stages},
    }
    alike = {axis: tuple(values) for axis, values in degrees.items() if len(values) == 1}
    return replace(space, pins={**alike, **space.pins})


def with_usual(
    ranking: Ranking,
    *,
    space: Space | None = None,
    rules: Sequence[Rule] = (),
    fit: float = 0.9,
    exportable_to: str | None = None,
    efficiency: Efficiency | None = None,
) -> Ranking:
    """Return a ranking whose first plan, on GPUs of one type, has switches that hardly any published run has
    (`cost.trust.rarity`) with the best plan on these that has none, found as its plans were (`plan`)."""
    if not ranking.plans or ranking.search.interrupted or len(ranking.best.gpus_by_type) > 1:
        return ranking
    best = ranking.best
    if not any(switch.axis in AXES for switch in rare_in(best)):
        return ranking

    pools = tuple(pool for pool in best.cluster.pools if pool.gpu.name in best.gpus_by_type)
    rare = switches_for(best.model, best.job, pools[0].gpu)
    ranked = plan(
        best.model,
        replace(best.cluster, pools=pools),
        best.job,
        space=space,
        rules=[*rules, *rules_against(rare)],
        top=1,
        fit=fit,
        exportable_to=exportable_to,
        efficiency=anchored(efficiency, best),
        indifference=ranking.search.indifference,
        longest=USUAL_WITHIN * best.iteration_seconds,
    )
    return replace(ranking, usual=usual_beside(best, ranked.plans[0])) if ranked.plans else ranking


def on_fewer(
    best: Plan,
    *,
    space: Space | None = None,
    rules: Sequence[Rule] = (),
    fit: float = 0.9,
    efficiency: Efficiency | None = None,
    indifference: float = INDIFFERENCE,
) -> tuple[Fewer, ...]:
    """Return the run of a costed plan on fewer of its machines. The plans there are searched for as the plan was
    (`plan`), on machines of several types among those of its degree and micro-batch that its framework runs; what only
    `train` runs is planned anew at once (`replan.replan`)."""
    efficiency = anchored(efficiency, best)
    if best.job.framework == OWN:
        from shardwright.search.replan import replan  # with the mixed search, too

        kept: Kept = {}
        return fewer_machines(best, partial(replan, best, kept=kept, fit=fit, efficiency=efficiency))
    space, filters = as_needed(space or Space(), best.model, best.job), Filters(rules=tuple(rules))
    degrees = {"tp": (best.stages[0].tensor_parallel,), "micro_batch": (best.micro_batch,)}
    alike = replace(space, pins={**space.pins, **degrees})
    searched: list[OneType] = []

    def alone(context: Context) -> OneType:
        known = next((result for result in searched if result.context.pool == context.pool), None)
        if known is None:
            known = search_type(context, space, filters, 1, indifference, np.inf)
            searched.append(known)
        return known

    def found(cluster: Cluster) -> Plan | None:
        results = [alone(context) for context in contexts_for(best.model, cluster, best.job, fit, efficiency)]
        asked = Asked(cluster=cluster, space=alike, filters=filters, gap=GAP, indifference=indifference, fit=fit)
        mixed, _ = _beyond_one_type(results, asked, 1, best.job.framework)
        _, plans = best_plans(results, cluster, 1, mixed, None, indifference)
        return plans[0] if plans else None

    return fewer_machines(best, found)


def with_program(
    ranking: Ranking,
    *,
    fit: float = 0.9,
    efficiency: Efficiency | None = None,
    keep: Callable[[Graph, Program], None] | None = None,
) -> Ranking:
    """Return a ranking with the fastest SPMD program for its model, machines and job, or why there is none. `keep` is
    given its graph and all that it does."""
    from shardwright.search.programs import best_program  # with all of synthesis, which plans do without

    best = ranking.best
    found = best_program(best.model, best.cluster, best.job, fit=fit, efficiency=efficiency, keep=keep)
    return replace(ranking, program=found)


def contexts_for(model: Model, cluster: Cluster, job: Job, fit: float, efficiency: Efficiency | None) -> list[Context]:
    """Return a context for each pool whose GPUs compute in the job's precision, and run the rest of the job where any
    do. Raises SpecError if none compute in it."""
    able = [pool for pool in cluster.pools if computes(pool.gpu, job.precision)]
    if not able:
        peak_flops(cluster.pools[0].gpu, job.precision)
    able = [pool for pool in able if not any(job_problems(pool.gpu, job))] or able
    time_of, room = efficiency or default_efficiency(), headroom(fit, job)
    alone = cluster.one_machine
    return [
        Context(model=model, pool=pool, job=job, efficiency=time_of, headroom=room, one_machine=alone) for pool in able
    ]


def predict(plan: Plan, *, efficiency: Efficiency | None = None) -> Plan:
    """Return a legal plan (`plans.check`) with its prediction. Raises SpecError for what `shardwright train`
    does not run of a plan that is priced for it."""
    (costed,) = predict_all([plan], efficiency=efficiency)
    return costed


def predict_all(plans: Sequence[Plan], *, efficiency: Efficiency | None = None) -> list[Plan]:
    """Return legal plans with their predictions (`predict`), those of one job in less time than one by one."""
    for plan in plans:
        reject(own_problems(plan))
    time_of = efficiency or default_efficiency()
    contexts = contexts_together(plans, time_of)
    return [plan.costed(prediction_of(plan, time_of, contexts=of)) for plan, of in zip(plans, contexts, strict=True)]
