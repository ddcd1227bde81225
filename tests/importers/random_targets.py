"""Random uniform plans, the same in every run, for what must hold of every export."""

from __future__ import annotations

from functools import cache

from hypothesis import HealthCheck, Phase, given, settings

from shardwright.plans.plan import Plan
from tests.plans.random_plans import uniform_plans


@cache
def collected(count: int) -> tuple[Plan, ...]:
    """Return so many plans."""
    plans: list[Plan] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(uniform_plans())
    def collect(plan: Plan) -> None:
        plans.append(plan)

    collect()
    return tuple(plans)
