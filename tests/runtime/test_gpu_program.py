"""`make gpu` on a machine without a GPU: the same code with a small model."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])


def test_a_configuration_is_predicted_run_and_compared() -> None:
    import gpu  # type: ignore[import-not-found]
    import gpu_steps  # type: ignore[import-not-found]

    from shardwright.cost.learned import default_efficiency
    from shardwright.measure.device import find_device
    from shardwright.spec.read.cluster import build_cluster

    device = find_device("cpu", None)
    cluster = build_cluster({"nodes": [{"count": 1, "gpus": 1, "gpu": "A100-SXM-80"}]}, "test")
    tiny = replace(gpu_steps.TINY, hidden=64, layers=2, heads=2, ffn=128, vocab=256, seq_len=32)
    plan, row = gpu_steps.planned(tiny, cluster, (default_efficiency(),) * 2, "fp32", 1, "none")
    assert plan is not None and plan.job.framework == "train" and row.profiled_seconds == row.default_seconds
    own = gpu_steps.measured(row, lambda: gpu_steps.own_step(plan, "fp32", device), device)
    plain = replace(row, way="eager", default_seconds=None, profiled_seconds=None)
    plain = gpu_steps.measured(plain, lambda: gpu_steps.plain_step(plain, tiny, device), device)
    assert own.seconds and plain.seconds
    assert "over plain eager PyTorch" in gpu.summary([own, plain])
    assert "train" in gpu.text([own, plain]) and gpu_steps.kept_bytes(plan, "fp32") > 0.0
