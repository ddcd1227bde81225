"""What torchtitan 0.3 cannot express or run, named with the remedy."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import Problem
from shardwright.exporters.support.refusals import refusals, several_types
from shardwright.exporters.torchtitan.models import registered, registry
from shardwright.plans.plan import Plan

TARGET = "torchtitan"


def unsupported(plan: Plan) -> tuple[Problem, ...]:
    """Return why torchtitan cannot run a legal plan; nothing if it can."""
    return (*_model(plan), *(refusals(plan, TARGET) if plan.uniform else several_types(TARGET)))


def _model(plan: Plan) -> Iterator[Problem]:
    if registered(plan.model) is None:
        have = ", ".join(f"{each.module} {each.flavor}" for each in registry())
        yield Problem("model", f"{plan.model.name} is not in torchtitan's registry", f"it has {have}")
