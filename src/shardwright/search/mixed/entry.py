"""The mixed search as the planner calls it: pools in, costed plans with a certificate out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.memory.facts import headroom
from shardwright.plans.check import check
from shardwright.plans.findings import DeeperPipelines, Offload, Uncovered
from shardwright.plans.plan import Plan, Schedule
from shardwright.records import record
from shardwright.search.mixed.branch_and_bound.fastest import search_degrees
from shardwright.search.mixed.branch_and_bound.run import QUICK, Effort, MixedProblem, MixedResult, effort_for
from shardwright.search.mixed.drafts.draft import costed, fitting_seconds
from shardwright.search.mixed.heuristics.megatron import RULE, uniform_plans
from shardwright.search.mixed.offload import that_may_gain
from shardwright.search.mixed.restrictions import dropped, keeps_pins, narrowed, unruled
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.settings import not_covered, settings
from shardwright.search.objective import affordable_value
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, schedules
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job


@record
class MixedOutcome:
    """Costed plans, best first; the uniform plan over all machines, if one fits; what no plan of the space beats:
    seconds, or dollars of an iteration, whichever the job minimises."""

    plans: tuple[Plan, ...]
    bound: float
    not_covered: tuple[Uncovered, ...]
    uniform: Plan | None = None
    uniform_rule: str = RULE
    candidates: int = 0
    costed: int = 0


def mixed_search(
    contexts: Sequence[Context],
    cluster: Cluster,
    space: Space,
    filters: Filters,
    *,
    gap: float,
    fit: float,
    incumbent: float,
    enough: float = np.inf,
    effort: Effort | None = None,
    top: int,
) -> MixedOutcome:
    """Return the best plans over all `contexts` together that are better than `incumbent`, in what the job minimises.
    They are priced as `shardwright train` runs them, which alone can; the uniform plan that they are compared with as
    the job's framework does.

    `gap` is how far above the bound the best plan may be, `fit` the probability with which it must fit in memory. No
    more than `enough` seconds need be proven: some plan on one type takes no longer, though it is no `incumbent` as it
    is doubted.
    Raises SpecError where a GPU type has no figures.
    """
    plain, contexts = contexts, run_by_train(contexts, fit)
    space, filters = narrowed(contexts, space, filters)
    usable = unruled(settings(contexts, space, filters.axes), contexts, filters)
    chosen = [setting for setting in usable if not setting.spread]
    least = 0.0
    if not by_dollars(contexts[0].job):
        cutoff, links = min(incumbent / (1.0 + gap), enough), cluster.site_links
        chosen, least = that_may_gain(contexts, chosen, space, links, longest=incumbent, cutoff=cutoff)
    if not chosen:
        return MixedOutcome(plans=(), bound=least or np.inf, not_covered=not_covered(contexts, space))
    found_tables = tables(contexts, chosen, cluster.site_links)
    known: Known = {}

    priced = partial(costed, contexts, known=known)

    def allowed(plan: Plan) -> bool:
        return keeps_pins(plan, space) and not dropped(plan, contexts, filters)

    all_types = [range(len(plain))] if len(plain) > 1 else []
    everywhere = uniform_plans(plain, cluster, chosen, found_tables, all_types)
    uniform = best_uniform(plain, [plan for plans in everywhere for plan in plans])
    shown = None if uniform is None else costed(plain, uniform)
    rivals = [] if uniform is None or space.pins else _as_rival(uniform, contexts, filters, priced)
    incumbent = _least([incumbent], rivals)
    problem = MixedProblem(
        contexts=tuple(contexts),
        cluster=cluster,
        space=space,
        gap=gap,
        settings=tuple(chosen),
        tables=tuple(found_tables),
        known=known,
        effort=effort or effort_for(cluster),
        enough=enough,
    )
    if by_dollars(contexts[0].job):
        fast = search_degrees(replace(problem, effort=QUICK, enough=np.inf), np.inf, allowed)
        rivals += [priced(plan) for _, plan in fast.plans[:top]]
        result = _by_dollars(problem, _least([incumbent], rivals), allowed, priced)
        plans, bound = [plan for _, plan in result.plans[:top]], result.bound
    else:
        result = search_degrees(problem, incumbent, allowed)
        plans, bound = [priced(plan) for _, plan in result.plans[:top]], result.bound
        bound = max(bound, least) if np.isfinite(least) else bound
    rivals += [priced(plan) for plan in _with_zero_bubble(plans, contexts, space, filters)]
    return MixedOutcome(
        plans=(*plans, *rivals),
        uniform=shown,
        bound=bound,
        candidates=result.candidates,
        costed=result.costed,
        not_covered=(*not_covered(contexts, space), *depth_limits(result.deepest, len(contexts[0].model.layers))),
    )


def _least(values: Sequence[float], plans: Sequence[Plan]) -> float:
    """Return the least of some values and of those of the plans that keep the budget."""
    return min([*values, *(value for plan in plans if (value := affordable_value(plan)) is not None)])


def _by_dollars(
    problem: MixedProblem, incumbent: float, allowed: Callable[[Plan], bool], priced: Callable[[Plan], Plan]
) -> MixedResult:
    from shardwright.search.mixed.dollars.cheapest import search  # which a search for time does without
    from shardwright.search.mixed.dollars.machines import bill_of

    return search(problem, bill_of(problem.contexts), incumbent, allowed, priced, affordable_value)


def by_dollars(job: Job) -> bool:
    """Whether the numbers of machines are searched, too, since money counts."""
    return job.objective == "cost" or job.budget_dollars is not None


def run_by_train(contexts: Sequence[Context], fit: float) -> list[Context]:
    """Return contexts as `shardwright train` runs jobs in them."""
    job = replace(contexts[0].job, framework=OWN)
    return [replace(context, job=job, headroom=headroom(fit, job)) for context in contexts]


def joined(outcomes: Sequence[MixedOutcome]) -> MixedOutcome:
    """Return the outcome of several searches together."""
    return MixedOutcome(
        plans=tuple(plan for outcome in outcomes for plan in outcome.plans),
        uniform=next((outcome.uniform for outcome in outcomes if outcome.uniform is not None), None),
        bound=min(outcome.bound for outcome in outcomes),
        candidates=sum(outcome.candidates for outcome in outcomes),
        costed=sum(outcome.costed for outcome in outcomes),
        not_covered=tuple(dict.fromkeys(kind for outcome in outcomes for kind in outcome.not_covered)),
    )


def with_state_in_host(plain: MixedOutcome, more: MixedOutcome | None, best: float) -> MixedOutcome:
    """Return a `plain` outcome with what plans with optimizer state in host memory add, `more`: None where these were
    not searched. The bound holds for these where theirs is no lower, or where some are better than the `best` of all
    others; else it leaves them out."""
    if more is None:
        return replace(plain, not_covered=(*plain.not_covered, Offload()))
    both = joined([plain, more])
    gains = any(value < best for plan in more.plans if (value := affordable_value(plan)) is not None)
    if gains or more.bound >= plain.bound:
        return both
    return replace(both, bound=plain.bound, not_covered=(*both.not_covered, Offload(1.0 - more.bound / best)))


def depth_limits(deepest: int, layers: int) -> tuple[DeeperPipelines, ...]:
    """Return which pipelines are deeper than those whose compositions are listed, if a model has layers for any."""
    return (DeeperPipelines(deepest),) if 0 < deepest < layers else ()


def _as_rival(
    uniform: Plan, contexts: Sequence[Context], filters: Filters, priced: Callable[[Plan], Plan]
) -> list[Plan]:
    """Return the uniform plan over all machines as `shardwright train` runs it, if rules allow it and it fits."""
    overlap = replace(uniform.overlap, tensor_parallel=False)
    plan = replace(uniform, job=contexts[0].job, overlap=overlap)
    if dropped(plan, contexts, filters) or fitting_seconds(contexts, plan, {}) is None:
        return []
    return [priced(plan)]


def _with_zero_bubble(
    plans: Sequence[Plan], contexts: Sequence[Context], space: Space, filters: Filters
) -> Iterator[Plan]:
    """Yield the plans with gradients of weights apart, where they may be and fit: they are tried beside the search."""
    if 1 not in schedules(contexts[0], space):
        return
    known: Known = {}
    for plan in plans:
        apart = replace(plan, schedule=Schedule(kind="zero-bubble"), prediction=None)
        fits = not check(apart) and fitting_seconds(contexts, apart, known) is not None
        if fits and not dropped(apart, contexts, filters):
            yield apart


def best_uniform(contexts: Sequence[Context], plans: Sequence[Plan]) -> Plan | None:
    """Return the fastest of some plans that is legal and fits, if one is and does."""
    known: Known = {}
    legal = [plan for plan in plans if not check(plan)]
    timed = [(seconds, plan) for plan in legal if (seconds := fitting_seconds(contexts, plan, known)) is not None]
    return min(timed, key=lambda item: item[0])[1] if timed else None
