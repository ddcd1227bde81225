"""The nearest plan that a target can run, where it cannot run the one it is given.

The limits of a target come with settings that mend them (`pp=1`). The search is asked again with these, until the best
plan has none of the limits: one that the target runs, priced as it runs it. What the matrix says of candidates
(`support.matrix`) are rules of the search, so that it looks at what the target runs alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from shardwright.errors import Problem, SpecError
from shardwright.exporters.exported import Limit
from shardwright.exporters.support.matrix import limits_in_rules
from shardwright.exporters.targets import TARGETS, Limits, limits_of, require_target
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Ranking
from shardwright.search.planner import plan as search
from shardwright.search.rules.rules import Rule
from shardwright.search.space.axes import Space, parse_pins
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model

V = TypeVar("V")
SEARCHES = 6  # with the limits of the plans before


def nearest_plan(plan: Plan, to: str) -> Plan | None:
    """Return the best plan for the same model, machines and job that target `to` can run, with its prediction; None
    where the target runs every legal plan, or where nothing but another model or job would help. Raises SpecError for
    what is no target."""
    require_target(to)
    limits = limits_of(to)
    if limits is None or check(plan) or not tuple(limits(plan)):
        return None
    job = replace(plan.job, framework=TARGETS[to].framework)
    options = [problem for problem in limits(plan) if problem.path.startswith("job.options.")]
    try:
        ranking = search_for(to, limits, plan.model, plan.cluster, job, space=narrowed(Space(), options))
    except SpecError:  # GPUs that cannot compute in the job's precision
        return None
    return ranking.plans[0] if ranking.plans else None


def search_for(
    to: str,
    limits: Limits,
    model: Model,
    cluster: Cluster,
    job: Job,
    *,
    space: Space | None = None,
    rules: Sequence[Rule] = (),
    **asked: Any,
) -> Ranking:
    """Return the best plans that a target with these `limits` can run, as `planner.plan` ranks them; where it can run
    none of those found, a ranking without plans."""
    space = space or Space()
    rules = (*rules, *(rule for _, rule in limits_in_rules(to, model, job)))
    for _ in range(SEARCHES):
        ranking = search(model, cluster, job, space=space, rules=rules, exportable_to=to, **asked)
        runnable = tuple(plan for plan in ranking.plans if not tuple(limits(plan)))
        if runnable == ranking.plans or runnable[:1] == ranking.plans[:1]:
            return replace(ranking, plans=runnable)
        narrower = narrowed(space, limits(ranking.best))
        if narrower is None or narrower == space:
            break
        space = narrower
    return replace(ranking, plans=runnable)


def _both(asked: Mapping[str, tuple[V, ...]], mending: Mapping[str, tuple[V, ...]]) -> dict[str, tuple[V, ...]]:
    """Return the values that mend a fault, of each axis only those that were asked for."""
    return {
        axis: tuple(value for value in asked.get(axis, values) if value in values) for axis, values in mending.items()
    }


def narrowed(space: Space, faults: Iterable[Problem]) -> Space | None:
    """Return the space with the pins and options that mend faults; None where a fault has none, or they exclude each
    other."""
    pins, options = dict(space.pins), dict(space.options)
    for fault in faults:
        if not isinstance(fault, Limit):
            return None
        mending = parse_pins([fault.pins])
        pins |= _both(pins, mending.pins)
        options |= _both(options, mending.options)
    if not all((*pins.values(), *options.values())):
        return None
    return Space(pins=pins, options=options)
