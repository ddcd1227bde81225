"""Training under random plans equals that of one process. Takes minutes: run it with -m nightly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from tests.runtime.equal import SGD, require_equal
from tests.runtime.random_plans import drawn, plans
from tests.runtime.reference import reference_run
from tests.runtime.workers import Case, run_cases

from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.limits import unrunnable

PLANS = 2_000  # seeds from 0
# How many of their plans were legal when they were first drawn, and how many of these `shardwright train` ran.
LEGAL, TRAINABLE = 1_401, 1_297
STEPS, PROCESSES, TOGETHER = 6, 8, 10
RUNNABLE = plans(largest_tp=2).filter(lambda plan: plan.gpus <= PROCESSES and not unrunnable(plan))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # that plans are long to print
@settings(
    max_examples=8,
    phases=[Phase.generate],  # every example starts processes, so none is shrunk
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(st.lists(RUNNABLE, min_size=TOGETHER, max_size=TOGETHER))
def test_training_under_random_plans_equals_that_of_one_process(found: list[Plan]) -> None:
    outcomes = run_cases([Case(str(n), plan, SGD, steps=STEPS) for n, plan in enumerate(found)], PROCESSES)
    for number, plan in enumerate(found):
        note(f"plan {number}: {plan.model.name}, {plan.schedule}, {plan.replicas}")
        assert check(plan) == () and layout_of(plan).world_size == plan.gpus
        require_equal(outcomes[str(number)], reference_run(plan, SGD, steps=STEPS, seed=7))


def test_no_fewer_plans_are_legal_than_there_were() -> None:
    """What is wrong with a plan that was legal is to be mended, not refused."""
    own = [drawn(seed) for seed in range(PLANS)]
    others = [replace(plan, job=replace(plan.job, framework="megatron")) for plan in own]
    assert sum(not check(plan) for plan in others) >= LEGAL
    assert sum(not check(plan) for plan in own) >= TRAINABLE
    assert not any(unrunnable(plan) for plan in own if not check(plan))
