"""The zero-bubble schedule in what is said of a plan: where its time goes, what changes it, what its traces are read as."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.golden.plans import LLAMA_3_1_8B, uniform_plan

from shardwright import Job, SpecError, check, predict
from shardwright.cli.train_input import require_measurable
from shardwright.cost.pipeline.schedule import WORDS
from shardwright.plans.plan import Plan, Schedule
from shardwright.search.ladder import ladder
from shardwright.traces.figures import COMPUTE
from shardwright.traces.kineto import OWN

JOB = Job(global_batch=16, seq_len=4096, framework="train")


def plan_of(kind: str, *, tp: int = 2, pp: int = 4) -> Plan:
    """A plan of one replica: nothing is reduced, and nothing sharded."""
    plan = uniform_plan(
        LLAMA_3_1_8B, nodes=1, job=JOB, micro_batch=1, tp=tp, pp=pp, counts=(32 // pp,) * pp, sharding="none"
    )
    return predict(replace(plan, schedule=Schedule(kind=kind)))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["1f1b", "zero-bubble"])
def test_communication_of_tensor_parallelism_is_not_that_of_gradients(kind: str) -> None:
    plan = plan_of(kind)
    assert not check(plan)
    assert plan.predicted.time.data_parallel_seconds == pytest.approx(0.0, abs=1e-6)


def test_a_zero_bubble_plan_hides_less_and_waits_less() -> None:
    plain, apart = (plan_of(kind).predicted for kind in ("1f1b", "zero-bubble"))
    assert apart.time.tensor_parallel_seconds > plain.time.tensor_parallel_seconds
    assert apart.time.bubble_seconds < plain.time.bubble_seconds


def test_one_change_at_a_time_leaves_the_schedule_where_it_must() -> None:
    plan = plan_of("zero-bubble", tp=4, pp=2)
    steps = ladder(plan)
    assert steps and all(not check(step.plan) for step in steps)
    assert min(step.plan.iteration_seconds for step in steps) < plan.iteration_seconds


def test_layers_are_not_measured_under_it() -> None:
    require_measurable(plan_of("1f1b"))
    with pytest.raises(SpecError, match="whole backward passes"):
        require_measurable(plan_of("zero-bubble"))


def test_a_trace_of_ours_computes_in_every_kind_of_operation() -> None:
    assert {OWN[word] for word in WORDS} == {COMPUTE}
