"""The layer profile that a run writes."""

from __future__ import annotations

import pytest
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright.runtime.timing.layer_profile import Measured, profile_document
from shardwright.spec.read.layer_profile import layer_profile


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
