"""The nearest plan that a target can run, where it cannot run the one it is given.

The limits of a target come with settings that mend them (`pp=1`). The search is asked again with these, until the best
plan has none of the limits: one that the target runs, priced as it runs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shardwright.errors import Problem, SpecError
from shardwright.exporters.limit import Limit
from shardwright.exporters.targets import TARGETS, Limits, limits_of
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.search.planner import plan as search
from shardwright.search.space.axes import Space, parse_pins
from shardwright.spec.cluster import Cluster

SEARCHES = 6  # with the limits of the plans before


def nearest_plan(plan: Plan, to: str) -> Plan | None:
    """Return the best plan for the same model, machines and job that target `to` can run, with its prediction; None
    where the target runs every legal plan, or where nothing but another model or job would help."""
    limits = limits_of(to)
    if limits is None or check(plan):
        return None
    job = replace(plan.job, framework=TARGETS[to].framework)
    clusters = [plan.cluster] if to == "megatron" else list(_by_type(plan.cluster))
    space = _narrowed(Space(), limits(plan)) or Space()
    found = [_nearest_on(replace(plan, cluster=cluster, job=job), limits, space) for cluster in clusters]
    best = min((each for each in found if each is not None), key=_seconds, default=None)
    return None if best is None else replace(best, cluster=plan.cluster)


def _seconds(plan: Plan) -> float:
    assert plan.prediction is not None, "a search costs its plans"
    return plan.prediction.iteration_seconds


def _by_type(cluster: Cluster) -> Iterable[Cluster]:
    for name in dict.fromkeys(pool.gpu.name for pool in cluster.pools):
        yield replace(cluster, pools=tuple(pool for pool in cluster.pools if pool.gpu.name == name))


def _nearest_on(plan: Plan, limits: Limits, space: Space) -> Plan | None:
    """Return the best plan on the machines of `plan` within the limits."""
    for _ in range(SEARCHES):
        try:
            found = search(plan.model, plan.cluster, plan.job, space=space, exportable_to="megatron")
        except SpecError:  # GPUs that cannot compute in the job's precision
            return None
        if not found.plans:
            return None
        faults = tuple(limits(found.best))
        if not faults:
            return found.best
        more = _narrowed(space, faults)
        if more is None or more == space:
            return next((each for each in found.plans if not tuple(limits(each))), None)
        space = more
    return None


def _narrowed(space: Space, faults: Iterable[Problem]) -> Space | None:
    """Return the space with the pins and options that mend faults; None where a fault has none, or they exclude each
    other."""
    pins, options = dict(space.pins), dict(space.options)
    for fault in faults:
        if not isinstance(fault, Limit):
            return None
        mending = parse_pins([fault.pins])
        options |= mending.options
        for axis, values in mending.pins.items():
            pins[axis] = tuple(value for value in pins.get(axis, values) if value in values)
            if not pins[axis]:
                return None
    return Space(pins=pins, options=options)
