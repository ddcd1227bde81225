"""Inputs that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.errors import SpecError, bad

if TYPE_CHECKING:
    from shardwright.plan.plan import Plan

TARGETS = ("megatron",)


def require_target(target: str) -> None:
    """Raise SpecError for a target that there is no exporter for."""
    if target not in TARGETS:
        raise bad(f"--to {target}", "there is no such target", f"supported: {', '.join(TARGETS)}")


def refuse_unexportable(plan: Plan, target: str) -> None:
    """Raise SpecError with everything that the target cannot express."""
    from shardwright.export.megatron_limits import unsupported

    require_target(target)
    problems = unsupported(plan)
    if problems:
        raise SpecError(*problems)
