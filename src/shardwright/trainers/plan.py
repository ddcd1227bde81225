"""Plans that somebody can run: the search of the planner within what the trainers of a framework run, and the best of
them beside a plan that is given.

Where the search finds first what no trainer of the framework takes, it looks again at what they take alone. Of several
frameworks each is a search of its own, and the best plan says which it is priced for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shardwright.calls import require_kinds
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.facts import headroom
from shardwright.cost.site.calibrated import Calibrated, anchored
from shardwright.errors import SpecError, bad, reject, suggestion
from shardwright.exporters.support.matrix import limits_in_rules
from shardwright.exporters.support.refusals import runs_as_program
from shardwright.exporters.targets import TRAINERS
from shardwright.plans.check import check, position_problems
from shardwright.plans.findings import BlockRecomputation, Change, NoTrainer, Remedy, TooLittleMemory
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Evaluation, NoPlan, Ranking, SearchReport, WithOptions
from shardwright.plans.trainer_options import option_problems
from shardwright.records import record
from shardwright.search.objective import INDIFFERENCE, affordable_value, require_sure
from shardwright.search.planner import plan as search
from shardwright.search.planner import predict, predict_all
from shardwright.search.ranked import best_of, with_bound
from shardwright.search.rules.rules import Rule
from shardwright.search.space.axes import Space, jobs_of
from shardwright.spec.catalog.frameworks import MEGATRON, OWN, framework_names, framework_options
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.options import said
from shardwright.spec.preference import as_trained
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.model import load_model
from shardwright.trainers.arguments import named, pinned, rules_of
from shardwright.trainers.runs import frameworks_with_trainers, limits_of_trainer, runners, somebody_runs, what_lacks

ANY = "any"
USUAL = MEGATRON  # the framework that plans are for where nobody names one
NO_PLAN_OF_THESE = "runs none of the plans found"
# Of a run, which its router and the releases of its libraries decide.
FACTS = ("expert_imbalance", "expert_products")
# Options that some trainers take and that plans leave to them, as their gain hangs on few published runs.
OFFERED = (
    {"cuda_graph": "attention"},
    {"cuda_graph": "attention", "exchange_overlap": "batches"},
    {"cuda_graph": "layers"},
)
FIT = 0.9  # as `planner.plan` has it
PAYS = 0.01  # of the time, from which on an option is worth a word
NOT_SEARCHED = SearchReport(candidates=0, costed=0, seconds=0.0, rejected=(), phases=())


@record
class Question:
    """What plans are searched for, whatever the framework; `asked` are further arguments of `planner.plan`."""

    model: Model
    cluster: Cluster
    job: Job
    space: Space
    exportable_to: str | None
    asked: Mapping[str, Any]

    def on(self, framework: str) -> Job:
        return replace(self.job, framework=framework)

    def trainers(self, framework: str) -> tuple[str, ...]:
        """Return the trainers of a framework that are in question."""
        names = frameworks_with_trainers()[framework]
        return names if self.exportable_to is None else tuple(name for name in names if name == self.exportable_to)

    def lacks(self, framework: str) -> dict[str, str]:
        """Return what each trainer of a framework lacks of model or job, with the options that are pinned to one value,
        empty for those that run them."""
        settled = {name: values for name, values in self.space.options.items() if len(values) == 1}
        (job,) = jobs_of(self.on(framework), settled)
        return what_lacks(job, self.model, self.cluster, self.trainers(framework))


@record(kw_only=False)
class Searched:
    """Options with which another plan may be best: they are searched `within` some settings, where `pays_where` says
    that they may pay, and `pins` ask for what is found."""

    options: Mapping[str, list[Any]]
    within: Mapping[str, list[Any]]
    pins: Mapping[str, list[Any]]
    pays_where: Callable[[Question], bool]


# How mixtures of experts are run with all of it (Megatron-Bridge 0.6.2, recipes of DeepSeek and Qwen on Blackwell).
# Searched without, experts that are not split look better than they are.
GRAPHS: Mapping[str, list[Any]] = {"cuda_graph": ["attention"], "exchange_overlap": ["batches"]}
LAYOUT: Mapping[str, list[Any]] = {"tp": [1], "mbs": [1, 2], "recompute": ["none"]}
# Whole gradients on every GPU until the last micro-batch, which Accelerate has unless it is told otherwise.
LAST: Mapping[str, list[Any]] = {"gradient_sync": ["last"]}
SHARDED: Mapping[str, list[Any]] = {"tp": [1], "cp": [1], "sharding": ["zero2", "zero3"]}
SEARCHED = (
    Searched(GRAPHS, LAYOUT, {**GRAPHS, **LAYOUT}, lambda asked: asked.model.has_experts),
    Searched(LAST, SHARDED, LAST, lambda asked: asked.job.global_batch > asked.cluster.gpus),
)


def plan(
    model: Model | str | Path,
    cluster: Cluster | str | Path,
    job: Job,
    *,
    pins: Mapping[str, Any] = MappingProxyType({}),
    rules: str | Sequence[Rule | str] = (),
    framework: str | Sequence[str] | None = None,
    frameworks: str | Sequence[str] = (),
    exportable_to: str | None = None,
    space: Space | None = None,
    sure: float | None = None,
    **asked: Any,
) -> Ranking:
    """Return the best plans that some trainer runs, best first, with who runs each (`Ranking.trainers`), which keep the
    job's deadline and budget as expected or, with `sure`, with that probability.

    `model` and `cluster` may be named as on the command line ("llama-3.1-8b", a file, "4x8xH100-SXM"). `pins` fix
    settings to one or more values (`{"tp": 8, "recompute": ["none", "selective"]}`) in place of those of `space`;
    `rules` drop candidates (`"$tp > 8"`).

    `framework` or `frameworks` are those to plan for, `any` for all that run the model; each is searched in what its
    trainers run. Where none is named the job's is meant, and where no trainer of Megatron-LM, the usual one, runs the
    model, the best of the others. `exportable_to` names a target that must run the plans. The other arguments are
    those of `search.planner.plan`: `top` plans are returned, `fit` is the probability with which they must fit,
    `efficiency`, `gap` and `indifference` as there. A plan for one framework that is named is returned even where
    nobody runs it, to compare with, and `no_trainer` says so then. Raises SpecError for input that makes no sense, and
    for a framework that nothing is exported to.
    """
    model = load_model(model) if isinstance(model, str | Path) else model
    model = as_trained(model, job.preference)
    cluster = load_cluster(cluster) if isinstance(cluster, str | Path) else cluster
    asked = require_kinds(search, asked)
    reject(position_problems(model, job))
    require_sure(sure, job)
    frameworks = named("`frameworks=`", frameworks) + named("`framework=`", framework)
    space, asked["rules"] = pinned(space, pins), rules_of(rules, cluster)
    if sure is not None:
        from shardwright.search.sure import surely

        settled: dict[str, Any] = {"frameworks": frameworks, "exportable_to": exportable_to, "space": space, **asked}
        return surely(lambda limited: plan(model, cluster, limited, **settled), job, sure)
    if exportable_to is not None and exportable_to not in TRAINERS:
        raise bad("`exportable_to=`", f"{exportable_to!r} is not a target", suggestion(exportable_to, TRAINERS))
    wanted = _wanted(frameworks, job, exportable_to)
    question = Question(model=model, cluster=cluster, job=job, space=space, exportable_to=exportable_to, asked=asked)
    free = not frameworks and exportable_to is None
    lacks: dict[str, dict[str, str]] = {}
    others = tuple(name for name in frameworks_with_trainers() if name not in wanted)
    for names in (wanted, others if free and wanted == (USUAL,) else ()):
        lacks |= {name: question.lacks(name) for name in names}
        able = [name for name in names if not all(lacks[name].values())]
        ranking = _best(question, {name: lacks[name] for name in able}, asked.get("top", 3), free=free)
        if ranking is not None:
            return ranking
        for name in able:
            lacks[name] = {trainer: words or NO_PLAN_OF_THESE for trainer, words in lacks[name].items()}
    every = replace(question, exportable_to=None)
    would = tuple(name for name in others if name not in lacks and not all(every.lacks(name).values()))
    nobody = NoTrainer(
        family=model.family,
        frameworks=wanted,
        lacks=tuple(item for lacking in lacks.values() for item in lacking.items()),
        able=would,
        as_program=runs_as_program(model, job),
    )
    if free or exportable_to is not None or ANY in frameworks or len(wanted) > 1:
        return Ranking(plans=(), baselines=(), search=NOT_SEARCHED, infeasible=NoPlan(reason=nobody, remedies=()))
    return replace(search(model, cluster, question.on(wanted[0]), space=question.space, **asked), no_trainer=nobody)


def plan_in_framework(question: Question) -> Ranking:
    """Return the best plans that a trainer of the job's framework runs. Where none runs the model, and of a framework
    that nothing is exported to, they are of the whole space; `no_trainer` says so of the former."""
    framework = question.job.framework
    lacks = question.lacks(framework) if framework in frameworks_with_trainers() else {}
    if lacks and not all(lacks.values()):
        ranking = _best(question, {framework: lacks}, question.asked.get("top", 3), free=True)
        if ranking is not None:
            return ranking
    ranking = search(question.model, question.cluster, question.job, space=question.space, **question.asked)
    if not lacks:
        return ranking
    nobody = NoTrainer(
        family=question.model.family,
        frameworks=(framework,),
        lacks=tuple(lacks.items()),
        able=_others(question),
        as_program=runs_as_program(question.model, question.job),
    )
    return replace(ranking, no_trainer=nobody)


def _others(question: Question) -> tuple[str, ...]:
    """Return the other frameworks of which some trainer runs the model."""
    names = (name for name in frameworks_with_trainers() if name != question.job.framework)
    return tuple(name for name in names if not all(question.lacks(name).values()))


def _best(question: Question, able: Mapping[str, Mapping[str, str]], top: int, *, free: bool) -> Ranking | None:
    """Return the best plans for some frameworks with what their trainers lack; a ranking that says why there is none
    where nothing fits, and None where there are plans and nobody runs any."""
    rankings, refused = [], None
    for framework, lacks in able.items():
        try:
            rankings.append(_for_framework(question, framework, lacks, free=free))
        except SpecError as error:  # what this framework does not have: an option, a precision of the GPUs
            refused = error
    if refused is not None and not rankings:
        raise refused
    feasible = [ranking for ranking in rankings if ranking.plans]
    if feasible:
        ranking = best_of(feasible, top)
        plans = [(candidate, names) for candidate in ranking.plans if (names := runners(candidate))]
        ranking = replace(ranking, plans=tuple(plan for plan, _ in plans), trainers=tuple(names for _, names in plans))
        if not plans:
            return ranking
        searched = (_searched(ranking, question, able, offered) for offered in SEARCHED)
        better = _with_options(ranking, question), *searched
        offer = min(filter(None, better), key=lambda other: _value(other.plan), default=None)
        return replace(ranking, with_options=offer)
    return min((ranking for ranking in rankings if ranking.infeasible is not None), key=_missing, default=None)


def _with_options(ranking: Ranking, question: Question) -> WithOptions | None:
    """Return the best of the plans of a ranking, and of rules of thumb where neither pins nor rules bind those, with
    options of `OFFERED` that are not said, where it fits and pays: what an option hides or launches may pay in another
    plan than the first."""
    best: Plan = ranking.best
    pins: tuple[str, ...] = ()
    free = question.space == Space() and not question.asked.get("rules")
    beside = [entry.plan for entry in ranking.baselines if free and entry.plan is not None]
    for offered in OFFERED:
        asked = []
        for plan in (*ranking.plans, *beside):
            able = framework_options(plan.job.framework)
            if all(name in able and getattr(plan.job.options, name) is None for name in offered):
                options = replace(plan.job.options, **offered)  # type: ignore[arg-type]
                asked.append(replace(plan, job=replace(plan.job, options=options)))
        legal = [plan for plan in asked if not check(plan) and somebody_runs(plan)]
        for plan in predict_all(legal, efficiency=question.asked.get("efficiency")):
            if _value(plan) < _value(best) and _fits(plan, question.asked.get("fit", FIT)):
                best, pins = plan, tuple(f"{name}={word}" for name, word in offered.items())
    return _offer(ranking, best, pins)


def _searched(
    ranking: Ranking, question: Question, able: Mapping[str, Mapping[str, str]], offered: Searched
) -> WithOptions | None:
    """Return the best plan of a search with options that are not said, where nothing is pinned and it pays."""
    job = ranking.best.job
    there = offered.options.keys() <= {*framework_options(job.framework)} - said(job.options).keys()
    space = pinned(Space(), {**offered.options, **offered.within})
    contradicted = any(any(option_problems(question.model, other)) for other in jobs_of(job, space.options))
    if not there or contradicted or question.space != Space() or not offered.pays_where(question):
        return None
    asked = {**question.asked, "top": 1}
    if job.objective == "time" and not isinstance(asked.get("efficiency"), Calibrated):
        asked["longest"] = (1.0 - PAYS) * _value(ranking.best)
    narrow = replace(question, space=space, asked=asked)
    plans = _for_framework(narrow, job.framework, able[job.framework], free=False).plans
    if not plans or not somebody_runs(plans[0]):
        return None
    words = (f"{name}={','.join(map(str, values))}" for name, values in offered.pins.items())
    return _offer(ranking, plans[0], tuple(words))


def _offer(ranking: Ranking, plan: Plan, pins: tuple[str, ...]) -> WithOptions | None:
    """Return a plan with options beside the first of a ranking, None where it does not pay."""
    saving = 1.0 - _value(plan) / _value(ranking.best)
    return WithOptions(plan=plan, saving=saving, pins=pins) if saving > PAYS else None


def _fits(plan: Plan, probability: float) -> bool:
    return plan.prediction is not None and plan.prediction.fit_probability >= probability


def _value(plan: Plan) -> float:
    """Return what the job minimises, infinite where a plan misses its deadline or budget."""
    value = affordable_value(plan)
    return math.inf if value is None else value


def _missing(ranking: Ranking) -> float:
    """Return how many times the memory that there is the leanest plan needs, infinite where memory is not what is
    missing."""
    reason = ranking.infeasible and ranking.infeasible.reason
    needs = reason.needs if isinstance(reason, TooLittleMemory) else ()
    return min((need.needed_bytes / need.memory_bytes for need in needs), default=math.inf)


def _wanted(frameworks: Sequence[str], job: Job, exportable_to: str | None) -> tuple[str, ...]:
    """Return the frameworks to plan for. Raises SpecError for those that nothing is exported to, and where the target
    that is named is of none of those that are."""
    known = frameworks_with_trainers()
    exported = tuple(name for name, names in known.items() if exportable_to in names)
    if ANY in frameworks or (exported and not frameworks):
        return exported or tuple(known)
    wanted = tuple(dict.fromkeys(frameworks or (job.framework,)))
    for name in wanted:
        if name in framework_names() and name not in known:
            message = f"{name} is known for `evaluate` and `validate` alone: nothing is exported to it"
            raise bad("`framework=`", message, f"plan for {', '.join(known)}, or {ANY}")
        if name not in known:
            raise bad("`framework=`", f"{name!r} is not known", suggestion(name, (*known, ANY)))
    if exported and not set(exported) & set(wanted):
        message = f"is {', '.join(wanted)}, but `exportable_to=` {exportable_to} is a target of {', '.join(exported)}"
        raise bad("`framework=`", message, "leave one of them out")
    return exported or wanted


def _for_framework(question: Question, framework: str, lacks: Mapping[str, str], *, free: bool) -> Ranking:
    """Return the best plans for a framework of which some trainer runs the model. Where nobody names Megatron-LM, plans
    over several types that `train` alone runs are among its plans."""
    able = [name for name, lacking in lacks.items() if not lacking]
    job = question.on(framework)
    if framework in (USUAL, OWN):
        first = question.exportable_to
        if framework == USUAL and first is None and len(question.cluster.pools) > 1:
            by_train = free and not any(question.lacks(OWN).values())
            first = None if by_train else USUAL
        ranking = search(
            question.model, question.cluster, job, space=question.space, exportable_to=first, **question.asked
        )
        if not ranking.plans or somebody_runs(ranking.best):
            return ranking
    from shardwright.exporters.nearest import search_for  # only where the search finds what nobody runs

    limits = limits_of_trainer(able[0])
    return search_for(able[0], limits, question.model, question.cluster, job, space=question.space, **question.asked)


def found_within(ranking: Ranking, rules: Sequence[Rule], exportable_to: str | None) -> dict[str, Any]:
    """Return the arguments of `planner.with_nearby` and `on_fewer` that keep to what runs the best plan."""
    best, names = ranking.best, ranking.trainers[0] if ranking.trainers else ()
    if not names or best.job.framework in (USUAL, OWN):
        return {"rules": tuple(rules), "exportable_to": exportable_to}
    return {
        "rules": (*rules, *(rule for _, rule in limits_in_rules(names[0], best.model, best.job))),
        "exportable_to": names[0],
    }


def evaluate(
    user_plan: Plan,
    *,
    top: int = 1,
    fit: float = 0.9,
    efficiency: Efficiency | None = None,
    space: Space | None = None,
    rules: str | Sequence[Rule | str] = (),
    indifference: float = INDIFFERENCE,
) -> Evaluation:
    """Return the prediction of a plan, the best plans for the same model, machines, job and framework that keep the
    pins of `space` and the `rules`, and what would make it fit with probability `fit` if it does not; `indifference` is
    that of `planner.plan`.

    The best plans are those that a trainer of the framework runs; where none runs the model, those of the whole space,
    and `best.no_trainer` says so."""
    model_of_time = efficiency or default_efficiency()
    user_plan = with_facts(user_plan, space)
    mine = predict(user_plan, efficiency=model_of_time)
    model_of_time = anchored(model_of_time, mine) or model_of_time
    degrees = {stage.tensor_parallel for stage in user_plan.stages}
    space = space or Space()
    question = Question(
        model=user_plan.model,
        cluster=user_plan.cluster,
        job=user_plan.job,
        space=replace(space, tp_per_type=space.tp_per_type or len(degrees) > 1),
        exportable_to=None,
        asked={
            "rules": rules_of(rules, user_plan.cluster),
            "top": top,
            "fit": fit,
            "efficiency": model_of_time,
            "indifference": indifference,
        },
    )
    best = plan_in_framework(question)
    if best.plans and user_plan.job.objective == "time":
        mine = with_bound(mine, best.best.predicted.lower_bound_seconds)
    if not user_plan.uniform:
        return Evaluation(plan=mine, best=best)
    (context,) = contexts_of(user_plan, model_of_time).values()
    remedies = changes_to_run(replace(context, headroom=headroom(fit, context.job)), user_plan)
    return Evaluation(plan=mine, best=best, remedies=remedies)


def with_facts(plan: Plan, space: Space | None) -> Plan:
    """Return a plan with what pins say of its run that no launch says (`FACTS`), where it does not say it itself."""
    pinned, known = (space or Space()).options, said(plan.job.options)
    facts: Any = {name: pinned[name][0] for name in FACTS if len(pinned.get(name, ())) == 1 and name not in known}
    return replace(plan, job=replace(plan.job, options=replace(plan.job.options, **facts))) if facts else plan


def changes_to_run(context: Context, plan: Plan) -> tuple[Remedy, ...]:
    """Return single changes under which a uniform plan fits, of a plan that a trainer runs those after which one still
    does: where a part of the layers may be recomputed, not of all."""
    from shardwright.search.fitting import changes_that_fit  # a search for plans asks for none

    ran = somebody_runs(plan)
    changes = [change for change, changed in changes_that_fit(context, plan) if not ran or somebody_runs(changed)]
    part = any(isinstance(change, BlockRecomputation) for change in changes)
    return tuple(change for change in changes if not (part and change is Change.FULL_RECOMPUTATION))
