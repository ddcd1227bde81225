"""The row of a step that a generation ended before it was told: no step is missing from the metrics."""

from __future__ import annotations

from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shardwright.runtime.job.metrics import Row
from shardwright.runtime.recovery.run import Report
from shardwright.runtime.recovery.worker import rendezvous, training
from shardwright.runtime.recovery.worker.snapshot import Interval
from shardwright.runtime.recovery.worker.training import RankState
from shardwright.runtime.step.engine import StepResult, Vote


def row_of(result: StepResult, done: int, _seconds: float) -> Row:
    nothing: dict[str, Any] = dict.fromkeys(
        ("learning_rate", "seconds", "tokens_per_second", "mfu", "pass_seconds", "sync_seconds", "update_seconds"), 0.0
    )
    return Row(step=done, loss=result.loss, gradient_norm=result.gradient_norm, peak_memory_bytes=0, **nothing)


def step_result(loss: float, norm: float) -> StepResult:
    nothing: dict[str, Any] = dict.fromkeys(("pass_seconds", "sync_seconds", "update_seconds"), 0.0)
    return StepResult(loss=loss, gradient_norm=norm, stop=False, **nothing)


@pytest.fixture
def halted(monkeypatch: pytest.MonkeyPatch) -> RankState:
    """A rank whose generation is over before it knew the outcome of step 7, which it is told then."""
    monkeypatch.setattr(training, "apply_vote", lambda *_: 1.5)
    nobody: Any = None
    interval = Interval(every=5, protected=0)
    report = Report(step=6, voted=True)
    state = RankState(engine=nobody, writer=nobody, report=report, interval=interval, over=lambda: True, row=row_of)
    state.update(Vote(loss=2.0, square=2.25, stop=0.0))
    return state


def told(state: RankState) -> list[tuple[int, float, float]]:
    """Return what two generations tell that begin one after the other, without held-out data."""
    rows: list[Row] = []
    settings: Any = None
    training._tell_untold(state, None, settings, rows.append)
    training._tell_untold(state, None, settings, rows.append)
    return [(row.step, row.loss, row.gradient_norm) for row in rows]


def test_the_row_of_a_settled_step_is_told_once_when_training_goes_on(halted: RankState) -> None:
    assert told(halted) == [(7, 2.0, 1.5)]


def test_the_row_of_a_step_that_was_given_up_is_not(halted: RankState) -> None:
    halted.report = Report(step=6)
    assert told(halted) == []


def test_a_rank_without_the_row_takes_part_in_its_held_out_loss(
    halted: RankState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank has to: the loss is a sum over all of them, and another rank has the row."""
    losses: list[float] = []

    def loss(*_: Any) -> float:
        losses.append(3.0)
        return losses[-1]

    evaluation: Any = SimpleNamespace(due=lambda *_: True, loss=loss)
    settings: Any = SimpleNamespace(steps=9)
    pipeline = SimpleNamespace(device=torch.device("cpu"))
    engine: Any = SimpleNamespace(layout=SimpleNamespace(world_size=2), pipeline=pipeline)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda waiting: waiting.add_(1.0))
    halted.engine, halted.untold = engine, None
    training._tell_untold(halted, evaluation, settings, None)
    assert losses == [3.0]


def test_a_row_that_is_being_told_as_a_generation_ends_is_not_told_in_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread may still be with a tracker when the next rank is assigned."""
    given: list[Row | None] = []

    class Telling:
        def __init__(self, _link: Any, _order: Any, _settings: Any, untold: Row | None) -> None:
            given.append(untold)
            self.untold: Row | None = row_of(step_result(2.0, 1.5), 7, 0.0)

        def stuck(self) -> bool:
            self.untold = None  # told meanwhile
            return False

    link = SimpleNamespace(orders=Queue(), answer=lambda *_: None)
    for op in ("assign", "assign", "end"):
        link.orders.put(SimpleNamespace(message={"op": op, "logs": None}))
    monkeypatch.setattr(training, "KeeperLink", lambda *_: link)
    monkeypatch.setattr(training, "Training", Telling)
    monkeypatch.setattr(rendezvous, "environment", lambda _host: None)
    monkeypatch.setattr(rendezvous, "torn_down", lambda _seconds: True)
    monkeypatch.setattr(torch, "set_num_threads", lambda _number: None)
    settings: Any = None
    training.work("h", 1, 0, settings, b"")
    assert given == [None, None]
