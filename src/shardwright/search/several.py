"""Searches over machines of several types, one for each kind of plan: pipelines, of unequal replicas on one type too,
and uneven FSDP. Only searches that may have such plans import it, with all of `mixed` and `uneven`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.strategies import NONE
from shardwright.plans.mesh import is_mesh
from shardwright.plans.plan import Plan
from shardwright.plans.trainer_options import beyond_own
from shardwright.progress import stopped
from shardwright.records import record
from shardwright.search.equal_shares import equal_shares
from shardwright.search.kinds import (
    EXPORTABLE,
    Asked,
    OneType,
    largest_pools,
    least_value,
    looks_at_unequal,
    of_each_maker,
)
from shardwright.search.mixed.branch_and_bound.run import NO_PROOF
from shardwright.search.mixed.drafts.draft import costed
from shardwright.search.mixed.entry import (
    MixedOutcome,
    by_dollars,
    joined,
    mixed_search,
    run_by_train,
    with_state_in_host,
)
from shardwright.search.mixed.heuristics.unequal_counts import unequal_counts
from shardwright.search.mixed.heuristics.unequal_spread import hint_of, unequal_spread
from shardwright.search.mixed.offload import in_host
from shardwright.search.mixed.one_mesh import mesh_search
from shardwright.search.mixed.restrictions import dropped, lacking, narrowed
from shardwright.search.objective import affordable_value, most_valued, to_beat
from shardwright.search.uneven.search import UnevenResult, away, uneven_fsdp
from shardwright.search.uniform.best import preferred
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.job import Job

WORTH = 0.02  # part of the time that optimizer state in host memory must be able to gain to be looked at; by judgment
BEYOND = 1.1  # times a limit: what takes no longer is searched; by judgment
HARDLY = 1.1  # times the best plan so far: a plan on one type that is nearly as good; chosen
MOST_UNEVEN = 3  # plans of uneven FSDP that are costed in full


@record(kw_only=False)
class Pipelines:
    """What pipelines whose replicas may be unequal reach, and the seconds that this took."""

    outcome: MixedOutcome
    seconds: float


def search_pipelines(results: Sequence[OneType], asked: Asked, top: int, *, one_mesh: bool) -> Pipelines | None:
    """Return what pipelines reach over machines of several types, and those of unequal replicas on machines of one, or
    those alone that `one_mesh` of ranks can run. None where there are none in the space.

    Where the best plan leaves some types idle and may not be the best, what it uses is searched by itself: the fewer
    types, the further a search gets."""
    contexts = largest_pools([result.context for result in results])
    begin = time.perf_counter()
    longest = asked.longest if contexts[0].job.objective == "time" else np.inf
    most = most_valued(contexts[0].job, (context.pool for context in contexts))
    limit = most * (1.0 + asked.gap) * BEYOND  # so that what just keeps it is looked at
    incumbent = min(_to_beat_on_one_type(results, asked), longest)
    searched = partial(_within_budget, partial(_searched, results, asked, top, limit=limit, one_mesh=one_mesh))
    every = searched(contexts, incumbent)
    if every is None:
        return None
    fewer, looked_at = _in_use(every, contexts, incumbent, asked.gap), len(contexts)
    while 1 < len(fewer) < looked_at and not stopped():
        looked_at = len(fewer)
        again = searched(fewer, min([incumbent, *_values(every)]))
        every = every if again is None else replace(joined([every, again]), bound=every.bound)
        fewer = _in_use(every, contexts, incumbent, asked.gap)
    if len(of_each_maker(contexts)) > 1:
        every = replace(every, uniform=None)
    if not one_mesh and not by_dollars(contexts[0].job):
        longest = min([incumbent, limit, *_values(every)])
        if len(contexts) == 1:
            beside = unequal_counts(contexts[0], asked.cluster, asked.space, asked.filters, longest)
        else:
            beside = _spread_unequally(results, contexts, asked, every, longest)
        every = replace(every, plans=(*every.plans, *beside))
    return Pipelines(every, time.perf_counter() - begin)


def with_equal_shares(results: Sequence[OneType], asked: Asked, top: int, mixed: Pipelines | None) -> Pipelines | None:
    """Return what pipelines reach together with data parallelism of equal shares over several types, where the job's
    framework has it."""
    begin = time.perf_counter()
    shared = equal_shares(results, asked, top)
    if shared is None:
        return mixed
    seconds = time.perf_counter() - begin + (mixed.seconds if mixed else 0.0)
    return Pipelines(joined([mixed.outcome, shared]) if mixed else shared, seconds)


def _spread_unequally(
    results: Sequence[OneType], contexts: Sequence[Context], asked: Asked, every: MixedOutcome, longest: float
) -> tuple[Plan, ...]:
    """Return the best plan of unequal replicas over several types with experts or sequences spread, in settings like
    those of the best equal ones: in a mesh over several types, and on the machines of each."""
    meshes = sorted((value, hint_of(plan)) for value, plan in _valued(every) if is_mesh(plan))[:1]
    rows = [row for result in results if (least := result.found.least) is not None for row in [least[1]]]
    hints = [hint for _, hint in meshes]
    hints += [(int(row.tp[0]), int(row.cp[0]), int(row.ep[0]), int(row.micro_batch[0])) for row in rows]
    spread = {hint for hint in hints if hint[1] * hint[2] > 1}
    plans: list[Plan] = []
    for able in of_each_maker(contexts):
        if spread and len(able) > 1 and looks_at_unequal(able, asked.space, asked.filters):
            by_train = run_by_train(able, asked.fit)
            plans += unequal_spread(by_train, asked.cluster, asked.space, asked.filters, spread, longest)
    return tuple(plans)


def _within_budget(
    searched: Callable[[Sequence[Context], float], MixedOutcome | None], contexts: Sequence[Context], incumbent: float
) -> MixedOutcome | None:
    """Return what is `searched` for, where time counts first without the budget, which takes longer to keep: where the
    best plan keeps it, none that does is better."""
    job = contexts[0].job
    if job.budget_dollars is None or job.objective == "cost":
        return searched(contexts, incumbent)
    freed = replace(job, budget_dollars=None)
    free = searched([replace(context, job=freed) for context in contexts], incumbent)
    if free is None:
        return None
    plans = [replace(plan, job=job) for plan in free.plans]
    kept = replace(
        free,
        plans=tuple(plan for plan in plans if affordable_value(plan) is not None),
        uniform=None if free.uniform is None else replace(free.uniform, job=job),
    )
    best = min(plans, key=lambda plan: plan.iteration_seconds, default=None)
    if best is None or affordable_value(best) is not None or stopped():
        return kept
    within = searched(contexts, min([incumbent, *_values(kept)]))
    if within is None:
        return kept
    return replace(joined([kept, within]), bound=within.bound, not_covered=within.not_covered)


def _searched(
    results: Sequence[OneType],
    asked: Asked,
    top: int,
    contexts: Sequence[Context],
    incumbent: float,
    *,
    limit: float,
    one_mesh: bool,
) -> MixedOutcome | None:
    """Return what all searches find on the machines of `contexts`: first without optimizer state in host memory, then,
    where memory may be short, with parts of it there. Dollars are searched for the latter only where there is no other
    plan. `incumbent` is the value of one, what is above the `limit` is of no interest."""
    plain = _in_turn(results, asked, top, contexts, min(incumbent, limit), one_mesh=one_mesh)
    space = in_host(asked.space, asked.filters)
    if plain is None or space is None:
        return plain
    best = min([incumbent, *_values(plain)])
    needless = by_dollars(contexts[0].job) or not _short_of_memory(results, contexts, plain, incumbent)
    measured = any("offload" in context.source.only for context in contexts)  # which say nothing of it
    if measured or stopped() or (needless and np.isfinite(best)):
        return with_state_in_host(plain, None, best)
    beside = replace(asked, space=space, gap=max(asked.gap, WORTH), effort=NO_PROOF)
    more = _in_turn(results, beside, top, contexts, min(best, limit), one_mesh=one_mesh)
    better = min(_values(more), default=np.inf) if more else np.inf
    if more and better < best:
        proven = _in_turn(results, replace(asked, space=space), top, contexts, better, one_mesh=one_mesh)
        more = replace(joined([more, proven]), bound=proven.bound) if proven else more
    return with_state_in_host(plain, more, best)


def _short_of_memory(
    results: Sequence[OneType], contexts: Sequence[Context], plain: MixedOutcome, incumbent: float
) -> bool:
    """Return whether more memory may help the best plan so far, which leaves types idle or recomputes, or is hardly
    better than a plan on one type that keeps state in host memory."""
    value, best = min(_valued(plain), key=lambda item: item[0], default=(np.inf, None))
    alone = [least for result in results if (least := result.found.least) is not None]
    if best is not None and value < incumbent:
        idle = len(best.gpus_by_type) < len(contexts)
        rivalled = any(row.offload[0] > 0 and least <= HARDLY * value for least, row in alone)
        return idle or rivalled or any(stage.recompute.granularity != "none" for stage in best.stages)
    return len(contexts) > 1 or any(row.offload[0] > 0 or row.recompute[0] != NONE for _, row in alone)


def _in_turn(
    results: Sequence[OneType], asked: Asked, top: int, contexts: Sequence[Context], incumbent: float, *, one_mesh: bool
) -> MixedOutcome | None:
    """Return what all searches find on the machines of `contexts`, each with the plans of the last to beat."""
    outcomes: list[MixedOutcome] = []
    for search_all, able in _searches(contexts, asked, least_value(results), one_mesh=one_mesh):
        outcome = search_all(
            able, asked.cluster, asked.space, asked.filters, gap=asked.gap, incumbent=incumbent, top=top
        )
        outcomes.append(outcome)
        incumbent = min([incumbent, *_values(outcome)])
    return joined(outcomes) if outcomes else None


def _to_beat_on_one_type(results: Sequence[OneType], asked: Asked) -> float:
    """Return the value below which plans over several types, which are rare, come first or are told of. Where what they
    would come before has rare switches as well, it is so much above the least that this is proven in full."""
    least = least_value(results)
    within = least * (1.0 + asked.indifference)
    first = [key for result in results for key, _ in preferred(result.found.in_question, within)[:1]]
    _, rare, value = min(first, default=(True, 0, np.inf))
    return max(to_beat(first, 1, within), least * (1.0 + asked.gap)) if rare else value


def _values(outcome: MixedOutcome) -> list[float]:
    return [value for value, _ in _valued(outcome)]


def _valued(outcome: MixedOutcome) -> list[tuple[float, Plan]]:
    return [(value, plan) for plan in outcome.plans if (value := affordable_value(plan)) is not None]


def _in_use(outcome: MixedOutcome, contexts: Sequence[Context], incumbent: float, gap: float) -> list[Context]:
    """Return the machines that the best plan found is on; nothing where it is not better than `incumbent`, or nothing
    is by more than the gap."""
    value, best = min(_valued(outcome), key=lambda item: item[0], default=(np.inf, None))
    if best is None or value >= incumbent or outcome.bound * (1.0 + gap) >= value:
        return []
    return [context for context in contexts if context.pool.gpu.name in best.gpus_by_type]


def _searches(
    contexts: Sequence[Context], asked: Asked, enough: float, *, one_mesh: bool
) -> Iterator[tuple[Callable[..., MixedOutcome], Sequence[Context]]]:
    """Yield the searches for pipelines, each with the machines that it is over: for meshes of ranks, which Megatron-LM
    runs as well; for unequal replicas, which `shardwright train` alone runs, on one type where it runs the job. Where
    it does, of meshes only those with context or experts spread are searched: the others are among the latter."""
    framework = contexts[0].job.framework
    for able in of_each_maker(contexts):
        several = len(able) > 1
        if (
            several
            and (one_mesh or framework in (*EXPORTABLE, OWN))
            and not lacking(able, asked.space, asked.filters, one_mesh=True)
        ):
            yield mesh_search, able
        if not one_mesh and looks_at_unequal(able, asked.space, asked.filters):
            yield partial(mixed_search, fit=asked.fit, enough=enough, effort=asked.effort), able


@record(kw_only=False)
class Uneven:
    """What uneven FSDP reaches, its plans costed, and the seconds that this took."""

    outcome: UnevenResult
    seconds: float


def search_uneven(results: Sequence[OneType], asked: Asked, enough: float) -> Uneven | None:
    """Return what uneven FSDP over machines of several types reaches, or None where there is none in the space. What
    cannot be below `enough`, in what the job minimises, is looked at no further than for one plan."""
    contexts = [result.context for result in results]
    space, filters = narrowed(contexts, asked.space, asked.filters)
    types = {context.pool.gpu.name for context in contexts}
    if len(types) < 2 or away(space) or beyond_own(contexts[0].job):
        return None
    begin = time.perf_counter()
    contexts = run_by_train(contexts, asked.fit)
    reached = uneven_fsdp(
        largest_pools(contexts), asked.cluster, space, lambda plan: not dropped(plan, contexts, filters), enough=enough
    )
    plans = tuple(costed(contexts, plan) for plan in reached.plans[:MOST_UNEVEN])
    outcome = replace(reached, plans=plans, even=None if reached.even is None else costed(contexts, reached.even))
    return Uneven(outcome, time.perf_counter() - begin)


def without_limits(results: Sequence[OneType], asked: Asked, job: Job, incumbent: float) -> Plan | None:
    """Return the best mixed plan for another job, if one is better than `incumbent`."""
    contexts = largest_pools([replace(result.context, job=job) for result in results])
    best, spaces = None, (asked.space, in_host(asked.space, asked.filters))
    for space in spaces:
        if best is None and space is not None:
            within = replace(asked, space=space)
            for search_all, able in _searches(contexts, within, np.inf, one_mesh=False):
                plans = search_all(
                    able, asked.cluster, space, asked.filters, gap=asked.gap, incumbent=incumbent, top=1
                ).plans
                for plan in plans[:1]:
                    best, incumbent = plan, min(incumbent, affordable_value(plan) or np.inf)
    return best
