"""What Megatron-Bridge 0.6 cannot run, named with the remedy: every search for Megatron-LM asks."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import Problem
from shardwright.exporters.megatron.limits import beyond_the_matrix, mesh_problems
from shardwright.exporters.support.refusals import refusals, several_types
from shardwright.plans.plan import Plan
from shardwright.spec.adapter import ATTENTION, Adapter

TARGET = "bridge"


def unsupported(plan: Plan) -> tuple[Problem, ...]:
    """Return why Megatron-Bridge cannot run a legal plan; nothing if it can."""
    if not plan.uniform:
        return (*mesh_problems(plan), *several_types(TARGET))
    return (*refusals(plan, TARGET), *beyond_the_matrix(plan), *_fused_targets(plan.job.adapter))


def _fused_targets(adapter: Adapter | None) -> Iterator[Problem]:
    """Yield which targets are parts of matrices that Megatron-Core fuses."""
    targets = () if adapter is None else adapter.targets
    for fused in (ATTENTION[:3], ("gate_proj", "up_proj")):
        there = [name for name in fused if name in targets]
        if there and len(there) < len(fused):
            message = f"has {there[0]} without the others of {', '.join(fused)}, which are one matrix"
            yield Problem("job.adapter.targets", message, "target all or none of these")
