"""The metrics of a run, and the learning rate that stands in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.runtime.job import metrics
from shardwright.runtime.job.metrics import Row
from shardwright.runtime.state.recipe import Recipe


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
