"""The nearest plan that a target can run, where it cannot run the one it is given.

The hints of a target's limits are settings (`--set pp=1`). The search is asked again with them, until the best plan has
none of these limits: one that the target runs, priced as it runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from shardwright.errors import Problem, SpecError
from shardwright.exporters.accelerate.config import unsupported as accelerate
from shardwright.exporters.bridge.recipe import unsupported as bridge
from shardwright.exporters.deepspeed.config import unsupported as deepspeed
from shardwright.exporters.megatron.limits import unsupported as megatron
from shardwright.exporters.torchtitan.limits import unsupported as torchtitan
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.search.planner import plan as search
from shardwright.search.space.axes import Space, parse_pins
from shardwright.spec.cluster import Cluster

Limits = Callable[[Plan], Iterable[Problem]]
SEARCHES = 6  # with the limits of the plans before
SET = "--set "


def nearest_plan(plan: Plan, to: str) -> Plan | None:
    """Return the best plan for the same model, machines and job that target `to` can run, with its prediction; None
    where the target runs every legal plan, or where nothing but another model or job would help."""
    if to not in TRAINERS or check(plan):
        return None
    framework, limits = TRAINERS[to]
    job = replace(plan.job, framework=framework)
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
    """Return the space with the pins and options that faults hint at; None where a fault has no such hint, or they
    exclude each other."""
    pins, options = dict(space.pins), dict(space.options)
    for fault in faults:
        if not fault.hint.startswith(SET):
            return None
        hinted = parse_pins([fault.hint.removeprefix(SET)])
        options |= hinted.options
        for axis, values in hinted.pins.items():
            pins[axis] = tuple(value for value in pins.get(axis, values) if value in values)
            if not pins[axis]:
                return None
    return Space(pins=pins, options=options)


# The framework that a target runs, as `frameworks.csv` names it, and its limits.
TRAINERS: Mapping[str, tuple[str, Limits]] = {
    "megatron": ("megatron", megatron),
    "bridge": ("megatron", bridge),
    "torchtitan": ("torchtitan", torchtitan),
    "accelerate": ("fsdp", accelerate),
    "deepspeed": ("deepspeed", deepspeed),
}
