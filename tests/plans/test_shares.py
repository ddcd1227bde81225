"""Shares of rows and state: they sum exactly, and each fault is named by its field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.golden.plans import PLANS
from tests.nightly import examples
from tests.plans.random_plans import layered_plans

from shardwright.plans.check import check
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule
from shardwright.plans.shares import cuts

BASE = PLANS["llama-2-70b-interleaved"]
STAGE = replace(BASE.stages[0], tensor_parallel=1, layers=((0, len(BASE.model.layers)),), recompute=Recompute())
UNEVEN = replace(
    BASE,
    job=replace(BASE.job, global_batch=40),
    micro_batch=4,
    schedule=Schedule(kind="layered", waves=1),
    replicas=(
        Replica(count=3, micro_batches=2, stages=(STAGE,), rows=7, state=20),
        Replica(count=1, micro_batches=5, stages=(STAGE,), rows=19, state=40),
    ),
    optimizer=OptimizerPlan(sharding="zero3", parts=100),
    overlap=Overlap(grad_reduce=True, param_gather=True),
    sequence_parallel=False,
)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(layered_plans())
def test_random_layered_plans_are_legal(plan: Plan) -> None:
    assert check(plan) == ()
    assert plan.layered and not plan.uniform


def test_micro_batches_are_as_equal_as_can_be() -> None:
    assert check(UNEVEN) == ()
    assert [replica.sizes(4) for replica in UNEVEN.replicas] == [(4, 3), (4, 4, 4, 4, 3)]
    assert UNEVEN.replicas[1].waves(4, 5) == ((4,), (4,), (4,), (4,), (3,))
    six = replace(UNEVEN.replicas[1], micro_batches=6)
    assert six.waves(4, 3) == ((4, 3), (3, 3), (3, 3))


def changed(index: int, **changes: Any) -> Plan:
    replicas = list(UNEVEN.replicas)
    replicas[index] = replace(replicas[index], **changes)
    return replace(UNEVEN, replicas=tuple(replicas))


def with_stage(**changes: Any) -> Plan:
    return changed(1, stages=(replace(STAGE, **changes),))


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        (changed(0, rows=8), "replicas"),
        (changed(0, rows=None), "replicas[0].rows"),
        (changed(1, rows=4), "replicas[1].rows"),
        (changed(0, state=None), "replicas[0].state"),
        (changed(0, state=21), "replicas"),
        (changed(0, stages=(STAGE, STAGE)), "replicas[0].stages"),
        (with_stage(tensor_parallel=2), "replicas[1].stages[0].tensor_parallel"),
        (
            with_stage(recompute=Recompute(granularity="full", method="uniform", layers=2)),
            "replicas[1].stages[0].recompute.layers",
        ),
        (replace(UNEVEN, micro_batch=5), "micro_batch"),
        (replace(UNEVEN, schedule=Schedule(kind="layered")), "schedule.waves"),
        (replace(UNEVEN, schedule=Schedule(kind="layered", waves=2)), "replicas[1].micro_batches"),
        (replace(BASE, schedule=replace(BASE.schedule, waves=1)), "schedule.waves"),
        (replace(UNEVEN, optimizer=OptimizerPlan(sharding="zero3")), "optimizer.parts"),
        (replace(UNEVEN, optimizer=OptimizerPlan(sharding="zero2", parts=100)), "optimizer.sharding"),
        (replace(UNEVEN, optimizer=OptimizerPlan(sharding="zero3", parts=100, offload=0.5)), "optimizer.offload"),
        (replace(UNEVEN, schedule=Schedule()), "replicas[1].rows"),
        (replace(UNEVEN, schedule=Schedule()), "optimizer.parts"),
    ],
)
def test_each_fault_is_named(plan: Plan, path: str) -> None:
    problems = check(plan)
    assert path in [problem.path for problem in problems]
    assert all(problem.message and problem.hint for problem in problems)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=16), st.integers(1, 10_000), st.sampled_from([1, 8, 64]))
def test_cuts_are_exact_and_near_the_shares(states: list[int], blocks: int, step: int) -> None:
    states = [*states, 1]
    parts, elements = sum(states), blocks * step
    bounds = cuts(elements, states, parts, step)
    assert bounds[0] == 0 and bounds[-1] == elements
    for start, stop, state in zip(bounds, bounds[1:], states, strict=False):
        assert start % step == 0
        assert abs((stop - start) - elements * state / parts) < step
