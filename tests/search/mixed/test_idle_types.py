"""A GPU type more never makes the best plan slower: one that cannot do what the others do is left idle."""

from __future__ import annotations

import pytest

from shardwright import load_cluster, load_model, make_job, plan

ROUNDING = 1 + 1e-9  # times of plans are rounded when they are compared
AMPERE = "1x8xA100-SXM-80+1x8xA100-SXM-40"
WITHOUT = {
    "neither fused attention nor overlap": (AMPERE, "1x8xT4", {"precision": "fp16"}),
    "no overlap": ("1x8xH100-SXM+1x8xA100-SXM-80", "1x8xL40S", {}),
}


@pytest.mark.parametrize(("machines", "more", "words"), WITHOUT.values(), ids=WITHOUT)
def test_plans_over_several_types_are_no_slower_beside_one_more(machines, more, words):
    job = make_job(global_batch=32, seq_len=2048, **words)
    few, many = (
        plan(load_model("llama-3.2-3b"), load_cluster(names), job, top=1, exportable_to="megatron").plans[0].prediction
        for names in (machines, f"{machines}+{more}")
    )
    assert few and many and many.lower_bound_seconds is not None
    assert many.iteration_seconds <= few.iteration_seconds * ROUNDING
    assert many.lower_bound_seconds <= few.iteration_seconds * ROUNDING


@pytest.mark.nightly
def test_a_search_over_many_types_is_no_worse_than_one_over_those_that_its_plan_uses():
    used = "1x8xH100-SXM+1x8xA100-SXM-80+1x8xA100-SXM-40+1x8xH20"
    job = make_job(global_batch=128, seq_len=4096)
    few, many = (
        plan(load_model("llama-3.1-8b"), load_cluster(names), job, top=1).plans[0].prediction
        for names in (used, f"{used}+1x8xL40S+1x8xRTX4090+1x8xA10G")
    )
    assert few and many
    assert many.iteration_seconds <= few.iteration_seconds * ROUNDING
