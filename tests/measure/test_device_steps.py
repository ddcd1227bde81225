"""The benchmark that trains for real: predictions first, then steps, on a tiny model."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
from tests.measure.samples import few_rows

pytest.importorskip("torch")

from shardwright.cost.compute.flops import iteration_flops
from shardwright.measure.device import find_device
from shardwright.measure.run import measure

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("device_steps")


def tiny(steps: ModuleType):
    return steps.Size(hidden=64, layers=2, heads=4, kv_heads=2, ffn=128, vocab=256, seq_len=64, micro_batches=(1, 2))


def test_predictions_come_before_training_and_results_after(
    steps: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, out = tmp_path / "profile.json", tmp_path / "steps.json"
    monkeypatch.setattr("shardwright.measure.run.operator_rows", few_rows)
    measure(find_device("cpu", None), profile, minutes=0.01, links=False)
    monkeypatch.setattr(steps, "TINY", tiny(steps))
    monkeypatch.setattr("sys.argv", ["x", "--device", "cpu", "--profile", str(profile), "--out", str(out)])
    seen = []
    real = steps.trained

    def watched(step, device, size, precision):
        seen.append([item["seconds"] for item in json.loads(out.read_text())])
        return real(step, device, size, precision)

    monkeypatch.setattr(steps, "trained", watched)
    steps.main()
    assert seen[0] == [None] * 4
    found = json.loads(out.read_text())
    assert [(item["micro_batch"], item["recompute"]) for item in found] == [
        (1, "none"), (1, "full"), (2, "none"), (2, "full")
    ]  # fmt: skip
    assert all(item["seconds"] > 0 and item["profiled_seconds"] > 0 for item in found)
    printed = capsys.readouterr().out
    assert printed.index("predicted:") < printed.index("trained:")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_training_in_either_precision_lowers_the_loss(
    steps: ModuleType, monkeypatch: pytest.MonkeyPatch, precision: str, recompute: str
) -> None:
    """In bf16 as well, whose gradients are summed in fp32 and whose weights are copies: as on a GPU."""
    llama = importlib.import_module("small_llama").Llama
    losses, real = [], llama.loss

    def watched(model, tokens):
        loss = real(model, tokens)
        losses.append(float(loss.detach()))
        return loss

    monkeypatch.setattr(llama, "loss", watched)
    monkeypatch.setattr(steps, "TIMED_STEPS", 8)
    step = steps.Step(
        micro_batch=1, recompute=recompute, default_seconds=None, profiled_seconds=None, predicted_bytes=None
    )
    assert steps.trained(step, find_device("cpu", None), tiny(steps), precision).seconds > 0
    assert losses[-1] < losses[1] - 1e-3


def test_the_model_trained_is_the_model_predicted(steps: ModuleType) -> None:
    llama = importlib.import_module("small_llama").Llama(tiny(steps), recompute=False)
    described = steps.model_of(tiny(steps))
    assert sum(weight.numel() for weight in llama.parameters()) == described.parameters
    assert iteration_flops(described, 1, 64) > 0


def test_recomputation_changes_neither_loss_nor_gradients(steps: ModuleType) -> None:
    import torch

    llama = importlib.import_module("small_llama").Llama
    losses, norms = [], []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = llama(tiny(steps), recompute=recompute)
        loss = model.loss(torch.arange(128).reshape(2, 64))
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(sum(weight.grad.norm() ** 2 for weight in model.parameters())))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert losses[0] == pytest.approx(5.55, abs=0.3)  # log 256: nothing is learned yet


def test_what_the_planner_says_does_not_fit_is_no_failure(steps: ModuleType) -> None:
    text = steps.text(
        [steps.Step(micro_batch=8, recompute="none", default_seconds=None, profiled_seconds=None, predicted_bytes=None)]
    )
    assert "–" in text
