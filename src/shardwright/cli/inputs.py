"""Inputs that several commands share."""

from __future__ import annotations

from shardwright.errors import SpecError, bad, suggestion
from shardwright.plan.plan import Plan

TARGETS = ("megatron",)


def require_target(target: str) -> None:
    """Raise SpecError for a target that there is no exporter for."""
    if target not in TARGETS:
        raise bad(f"--to {target}", "there is no such target", suggestion(target, TARGETS))


def refuse_unexportable(plan: Plan, target: str) -> None:
    """Raise SpecError with everything that the target cannot express."""
    from shardwright.export.megatron_limits import unsupported

    require_target(target)
    problems = unsupported(plan)
    if problems:
        raise SpecError(*problems)
