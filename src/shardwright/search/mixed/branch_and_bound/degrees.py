"""The mixed search over tensor-parallel degrees: one for all GPU types first, then unequal ones, if the space has any.

The second search has to beat the plans of the first, which is as if there were no unequal degrees: so these never lead
to a slower plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwright.plans.plan import Plan
from shardwright.search.mixed.branch_and_bound.effort import Effort
from shardwright.search.mixed.branch_and_bound.fastest import FoundByTime, search
from shardwright.search.mixed.branch_and_bound.run import MixedProblem


def search_degrees(problem: MixedProblem, incumbent: float, allowed: Callable[[Plan], bool]) -> FoundByTime:
    """Return what `search` finds in the settings of equal and of unequal degrees, and the bound of both."""
    found = search(_part(problem, symmetric=True), incumbent, allowed)
    rest = _part(problem, symmetric=False)
    if not rest.settings:
        return found
    best = min((seconds for seconds, _ in found.plans), default=incumbent)
    return _joined(found, search(replace(rest, effort=_more(rest)), min(best, incumbent), allowed))


def _more(problem: MixedProblem) -> Effort:
    """Return the effort for many settings, each of which has to be looked at before any other is."""
    effort, count = problem.effort, len(problem.settings)
    return replace(effort, regions=effort.regions + 2 * count, patience=effort.patience + count // 2)


def _part(problem: MixedProblem, *, symmetric: bool) -> MixedProblem:
    pairs = zip(problem.settings, problem.tables, strict=True)
    chosen = [(setting, table) for setting, table in pairs if setting.symmetric == symmetric]
    return replace(
        problem,
        settings=tuple(setting for setting, _ in chosen),
        tables=tuple(table for _, table in chosen),
    )


def _joined(one: FoundByTime, other: FoundByTime) -> FoundByTime:
    plans = {(plan.replicas, plan.micro_batch): (seconds, plan) for seconds, plan in (*other.plans, *one.plans)}
    return FoundByTime(
        plans=tuple(sorted(plans.values(), key=lambda item: item[0])),
        lower_bound_seconds=min(one.lower_bound_seconds, other.lower_bound_seconds),
        candidates=one.candidates + other.candidates,
        costed=one.costed + other.costed,
        deepest=max(one.deepest, other.deepest),
    )
