"""Options of the trainer that a plan says, for exporters: what they write, and what they refuse by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from shardwright.errors import Problem
from shardwright.exporters.limit import limit
from shardwright.plans.plan import Plan
from shardwright.spec.options import said


def options_of(plan: Plan) -> dict[str, str]:
    """Return the options of a plan that are not the framework's own, as words by name. Modules count where a stage is
    recomputed selectively."""
    found = said(plan.job.options)
    stages = (stage for replica in plan.replicas for stage in replica.stages)
    if not any(stage.recompute.granularity == "selective" for stage in stages):
        found.pop("recompute_modules", None)
    return found


def refused_options(plan: Plan, name: str, able: Collection[str] = ()) -> Iterator[Problem]:
    """Yield the options of a plan that the target `name`, which can be told those in `able`, cannot."""
    for option, word in options_of(plan).items():
        if option not in able:
            yield limit(f"job.options.{option}", f"is {word}, which {name} cannot be told", f"{option}=default")
