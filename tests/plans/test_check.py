"""Legality of plans: legal ones pass, and each rule names its violation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.golden.plans import H100, PLANS
from tests.nightly import examples
from tests.plans.random_plans import uniform_plans

from shardwright.plans.check import check
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule

BASE = PLANS["llama-2-70b-interleaved"]
MIXTRAL = PLANS["mixtral-8x7b-experts"]
LONG = PLANS["llama-3.1-8b-context"]


@pytest.mark.parametrize("name", PLANS)
def test_the_golden_plans_are_legal(name: str) -> None:
    assert check(PLANS[name]) == ()


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(uniform_plans())
def test_random_legal_plans_are_legal(plan: Plan) -> None:
    assert check(plan) == ()


def replica_with(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, replicas=(replace(plan.replicas[0], **changes),))


def stage_with(plan: Plan, index: int = 0, **changes: Any) -> Plan:
    stages = list(plan.replicas[0].stages)
    stages[index] = replace(stages[index], **changes)
    return replica_with(plan, stages=tuple(stages))


def job_with(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, job=replace(plan.job, **changes))


FULL = Recompute(granularity="full", method="block", layers=5)


@pytest.mark.parametrize(
    ("plan", "path"),
    [
        (replace(BASE, replicas=()), "replicas"),
        (replica_with(BASE, stages=()), "replicas[0].stages"),
        (stage_with(BASE, tensor_parallel=0), "replicas[0].stages[0].tensor_parallel"),
        (replace(BASE, micro_batch=0), "micro_batch"),
        (replica_with(BASE, micro_batches=60), "replicas"),
        (replace(BASE, micro_batch=2), "replicas"),
        (stage_with(BASE, gpu="H100"), "replicas[0].stages[0].gpu"),
        (replica_with(BASE, count=16, micro_batches=32), "replicas"),
        (replica_with(job_with(BASE, global_batch=8 * 66), micro_batches=66), "replicas[0].micro_batches"),
        (replace(BASE, schedule=Schedule(kind="1f1b", virtual_stages=2)), "schedule.virtual_stages"),
        (replace(BASE, schedule=Schedule()), "replicas[0].stages[0].layers"),
        (stage_with(BASE, layers=((0, 8), (39, 49))), "replicas[0].stages[1].layers"),
        (stage_with(BASE, layers=((0, 9), (40, 49))), "replicas[0].stages[0].layers"),
        (stage_with(BASE, 3, layers=((29, 39), (70, 79))), "replicas[0]"),
        (stage_with(BASE, 3, layers=((29, 39), (70, 81))), "replicas[0]"),
        (stage_with(BASE, recompute=Recompute(granularity="selective", layers=1)), "replicas[0].stages[0].recompute"),
        (stage_with(BASE, recompute=replace(FULL, method=None)), "replicas[0].stages[0].recompute"),
        (stage_with(BASE, recompute=replace(FULL, layers=0)), "replicas[0].stages[0].recompute"),
        (stage_with(BASE, recompute=replace(FULL, layers=81)), "replicas[0].stages[0].recompute"),
        (stage_with(BASE, tensor_parallel=3), "replicas[0].stages[0].tensor_parallel"),
        (stage_with(MIXTRAL, expert_tensor_parallel=5), "replicas[0].stages[0].expert_tensor_parallel"),
        (stage_with(LONG, context_parallel=3), "replicas[0].stages[0].context_parallel"),
        (stage_with(BASE, expert_parallel=2), "replicas[0].stages[0].expert_parallel"),
        (stage_with(MIXTRAL, expert_parallel=3), "replicas[0].stages[0].expert_parallel"),
        (stage_with(MIXTRAL, expert_tensor_parallel=7), "replicas[0].stages[0].expert_parallel"),
        (replace(PLANS["llama-2-70b-fsdp-offload"], sequence_parallel=True), "sequence_parallel"),
        (job_with(BASE, seq_len=4100), "replicas[0].stages[0].tensor_parallel"),
        (replace(BASE, optimizer=OptimizerPlan(sharding="zero1", offload=1.5)), "optimizer.offload"),
        (replace(BASE, optimizer=OptimizerPlan(offload=0.5)), "optimizer.offload"),
        (replace(BASE, optimizer=OptimizerPlan()), "overlap.param_gather"),
        (replace(BASE, overlap=Overlap(param_gather=True)), "overlap.param_gather"),
        (replace(BASE, overlap=Overlap(tensor_parallel=True), sequence_parallel=False), "overlap.tensor_parallel"),
        (job_with(BASE, fp8_recipe="delayed"), "job.fp8_recipe"),
        (job_with(BASE, precision="int8"), "job.precision"),
        (job_with(PLANS["gpt-3-175b"], seq_len=4096), "job.seq_len"),
    ],
)
def test_each_violation_is_named_with_a_remedy(plan: Plan, path: str) -> None:
    problems = check(plan)
    assert path in [problem.path for problem in problems]
    assert all(problem.message and problem.hint for problem in problems)


def test_key_value_heads_may_be_fewer_than_ranks_but_not_odd() -> None:
    layer = BASE.model.layers[0]
    for kv_heads, legal in ((4, True), (8, True), (16, True), (6, False)):
        attention = replace(layer.self_attention, kv_heads=kv_heads)
        plan = replace(BASE, model=replace(BASE.model, layers=(replace(layer, attention=attention),) * 80))
        assert (check(plan) == ()) is legal


def test_unequal_replicas_are_legal() -> None:
    """A four-stage replica of H100s beside a one-stage replica of another type, with fewer micro-batches."""
    (replica,), (pool,) = BASE.replicas, BASE.cluster.pools
    one_chunk = tuple(replace(s, layers=((20 * i, 20 * i + 20),)) for i, s in enumerate(replica.stages))
    alone = replace(replica.stages[0], gpu="B200", layers=((0, 80),))
    cluster = replace(BASE.cluster, pools=(pool, replace(pool, gpu=replace(H100, name="B200"), nodes=1)))
    plan = replace(
        BASE,
        cluster=cluster,
        schedule=Schedule(),
        overlap=Overlap(),
        replicas=(
            Replica(count=7, micro_batches=70, stages=one_chunk),
            Replica(count=1, micro_batches=22, stages=(alone,)),
        ),
    )
    assert check(plan) == ()
    too_many = replace(plan, replicas=(plan.replicas[0], replace(plan.replicas[1], count=2, micro_batches=11)))
    assert [problem.message for problem in check(too_many)] == ["uses 16 GPUs of type B200, but the cluster has 8"]
