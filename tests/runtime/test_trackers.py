"""What a run records: its metrics, and those for TensorBoard and Weights & Biases, which are stood in for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shardwright.errors import SpecError
from shardwright.runtime.job import metrics
from shardwright.runtime.job.metrics import Row, require_trackers, tracked
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.state.recipe import Recipe


def settings(out: Path, **told: Any) -> Settings:
    return Settings(data=(), out=out, steps=4, recipe=Recipe(), **told)


class Project(ModuleType):
    """Stands in for the package wandb: notes what it is told, and fails from step `last` on."""

    def __init__(self, last: int = 100) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.last, self.ended = last, 0

    def init(self, **told: Any) -> Project:
        self.begun.append(told)
        return self

    def log(self, figures: dict[str, float], step: int) -> None:
        if step >= self.last:
            raise ConnectionError("no network")
        self.logged.append((step, figures))

    def finish(self) -> None:
        self.ended += 1


def test_a_missing_package_is_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "find_spec", lambda _: None)
    require_trackers(settings(tmp_path))
    for told, package in (({"tensorboard": True}, "tensorboard"), ({"wandb": "mine"}, "wandb")):
        with pytest.raises(SpecError, match=f"needs the package {package} .pip install {package}"):
            require_trackers(settings(tmp_path, **told))


def test_a_run_that_goes_on_is_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project()
    monkeypatch.setitem(sys.modules, "wandb", project)
    for first in (1, 3):
        with tracked(settings(tmp_path, wandb="mine"), {"model": "tiny"}) as report:
            for step in (first, first + 1):
                report(row(step))
    assert [step for step, _ in project.logged] == [1, 2, 3, 4] and project.ended == 2
    assert project.logged[0][1]["loss"] == 1.0 and "mfu" not in project.logged[0][1]
    one, other = project.begun
    assert one["id"] == other["id"] and one["resume"] == "allow"
    assert (one["project"], one["config"]) == ("mine", {"model": "tiny"})


def test_a_tracker_that_fails_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(last=2)
    monkeypatch.setitem(sys.modules, "wandb", project)
    with tracked(settings(tmp_path, wandb="mine"), {}) as report:
        for step in (1, 2, 3):
            report(row(step))
    assert capsys.readouterr().err.count("warning: Weights & Biases gets no more metrics: no network") == 1
    assert [step for step, _ in project.logged] == [1] and project.ended == 1


def test_tensorboard_has_every_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracked(settings(tmp_path, tensorboard=True), {}) as report:
        for step in (1, 2, 3):
            report(row(step))
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(1, 1.0), (2, 1.0), (3, 1.0)]


def test_learning_rate_rises_and_falls() -> None:
    recipe = Recipe(learning_rate=1.0, warmup_steps=4, decay_steps=14, final_fraction=0.1)
    rates = [recipe.rate(step) for step in range(20)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[9] == pytest.approx(0.55) and rates[14:] == pytest.approx([0.1] * 6)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (Recipe(schedule="linear", decay_steps=8), [1.0, 0.8875, 0.775, 0.6625, 0.55, 0.4375, 0.325, 0.2125, 0.1, 0.1]),
        (Recipe(schedule="linear", decay_steps=8, decay_from=6), [*[1.0] * 7, 0.55, 0.1, 0.1]),
        (Recipe(schedule="wsd", decay_steps=20), [*[1.0] * 19, 0.55, 0.1, 0.1]),
        (Recipe(schedule="wsd", decay_steps=8, decay_from=4, final_fraction=0.0), [*[1.0] * 5, 0.75, 0.5, 0.25, 0.0, 0.0]),
        (Recipe(schedule="wsd", warmup_steps=2), [0.5, 1.0, 1.0]),
    ],
)  # fmt: skip
def test_schedules(recipe: Recipe, expected: list[float]) -> None:
    rates = [recipe.rate(step) / recipe.learning_rate for step in range(len(expected))]
    assert rates == pytest.approx(expected)


def row(step: int) -> Row:
    return Row(
        step=step, loss=1.0, gradient_norm=1.0, learning_rate=1.0, seconds=1.0, tokens_per_second=1.0, mfu=None,
        pass_seconds=1.0, sync_seconds=1.0, update_seconds=1.0, peak_memory_bytes=1,
    )  # fmt: skip


def test_resumed_metrics_follow_on_the_step_before(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    metrics.begin(path, 1)
    for step in (1, 2, 3):
        metrics.append(path, row(step))
    metrics.begin(path, 3)
    metrics.append(path, row(3))
    assert [line.split(",")[0] for line in path.read_text().splitlines()] == ["step", "1", "2", "3"]
