"""Replicas and stages of a plan, each with its path in the plan file."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.plans.plan import Plan, Replica, Stage


def replicas_at(plan: Plan) -> Iterator[tuple[str, Replica]]:
    """Yield the path of each kind of replica, and the replica."""
    for index, replica in enumerate(plan.replicas):
        yield f"replicas[{index}]", replica


def stages_at(plan: Plan) -> Iterator[tuple[str, Replica, Stage]]:
    """Yield the path of each stage, its replica, and the stage."""
    for place, replica in replicas_at(plan):
        for index, stage in enumerate(replica.stages):
            yield f"{place}.stages[{index}]", replica, stage
