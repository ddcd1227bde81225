"""Options of the trainer that a plan says, for exporters to write."""

from __future__ import annotations

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
