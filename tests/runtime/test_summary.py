"""What a run writes at its end: measured beside predicted, and the profile of its layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.golden.plans import cluster_of
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.plans.plan import Plan, Prediction
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.timing.layer_profile import Measured, profile_document
from shardwright.runtime.timing.summary import RankSummary, stage_forecasts, summary_document, summary_text
from shardwright.spec.read.layer_profile import layer_profile


def predicted_plan() -> tuple[Plan, Prediction]:
    plan = plan_of(
        tiny_model(6),
        replica(stage((0, 2)), stage((2, 6)), micro_batches=4),
        replica(stage((0, 6)), micro_batches=2),
        precision="bf16",
        cluster=cluster_of(1),
    )
    prediction = predict(plan, default_efficiency())
    return plan.costed(prediction), prediction


def test_each_stage_stands_beside_its_forecast() -> None:
    plan, prediction = predicted_plan()
    ranks = [
        RankSummary(
            rank=rank,
            busy_seconds=0.3,
            waiting_seconds=0.1,
            span_seconds=0.4,
            data_seconds=0.01,
            sync_seconds=0.02,
            update_seconds=0.01,
            irregularity=0.0,
            peak_memory_bytes=10**9,
        )
        for rank in range(3)
    ]
    document = summary_document(layout_of(plan), ranks, [9.0, 0.5, 0.5])
    assert document["iteration_seconds"] == 0.5 and document["tokens_per_second"] == plan.job.tokens_per_iteration / 0.5
    first, second, alone = document["ranks"]
    assert first["bubble"] == pytest.approx(0.25) and 0.0 < first["predicted_bubble"] < 1.0
    assert second["predicted_busy_seconds"] > first["predicted_busy_seconds"]  # four layers and the head against two
    assert alone["predicted_bubble"] == pytest.approx(0.0, abs=1e-9)
    assert alone["predicted_memory_bytes"] == prediction.memory[1][0].total_bytes
    text = summary_text(document)
    assert "measured is +" in text and text.count("300 ms (") == 3


def test_a_prediction_made_otherwise_has_no_stages() -> None:
    plan, prediction = predicted_plan()
    other = replace(prediction, iteration_seconds=2 * prediction.iteration_seconds)
    assert len(stage_forecasts(plan)) == 2
    assert stage_forecasts(plan.costed(other)) == stage_forecasts(replace(plan, prediction=None)) == ()


def test_profile_fills_what_a_type_of_gpu_did_not_run() -> None:
    plan = plan_of(tiny_model(3), replica(stage((0, 1)), stage((1, 3), gpu="other"), micro_batches=1))

    def measured(gpu: str, forward: dict[int, float], recomputed: frozenset[int] = frozenset()) -> Measured:
        backward = {unit: 2 * seconds for unit, seconds in forward.items()}
        return Measured(
            gpu=gpu, tensor_parallel=1, forward_seconds=forward, backward_seconds=backward, recomputed=recomputed,
            update_seconds_each=1e-3,
        )  # fmt: skip

    document = profile_document(
        plan, [measured("H100-SXM", {0: 1.0, 1: 2.0}), measured("other", {2: 4.0, 3: 4.0, 4: 3.0}, frozenset({2}))]
    )
    first, second = document["entries"]
    assert first["forward_seconds"] == [1.0, 2.0, 2.0, 2.0, 1.5]
    assert second["forward_seconds"] == [2.0, 4.0, 4.0, 4.0, 3.0]
    assert second["backward_seconds"][1:4] == [6.0] * 3  # the median of 8 - 4 and 8
    weights = 61 * 32
    assert first["weight_bytes"][0] == 4 * weights and first["optimizer_seconds"][0] == pytest.approx(weights * 1e-3)
    assert layer_profile(document).layers == 3
