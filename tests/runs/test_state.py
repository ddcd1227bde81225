"""The good state of runs whose trouble is put in by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardwright import SpecError, good_state, read_run
from shardwright.runs.run import Event, MeasuredRun, Steps


def run_of(seconds: list[float] | np.ndarray, events: tuple[Event, ...] = (), covers: int = 1) -> MeasuredRun:
    count = len(seconds)
    blank = np.full(count, np.nan)
    figures = dict.fromkeys(Steps.__dataclass_fields__, blank)
    numbers = np.arange(1, count + 1) * covers
    figures |= dict(
        step=numbers, seconds=np.array(seconds), covers=np.full(count, covers), line=np.arange(1, count + 1) * 10
    )
    return MeasuredRun(name="run", trainer="table", steps=Steps(**figures), events=events)


def noisy(count: int, middle: float, spread: float = 0.01, seed: int = 3) -> np.ndarray:
    return middle * np.exp(spread * np.random.default_rng(seed).standard_normal(count))


def test_a_steady_run_is_all_good() -> None:
    state = good_state(run_of(noisy(200, 2.0)))
    assert state.seconds == pytest.approx(2.0, rel=0.003)
    assert state.spread == pytest.approx(0.01, rel=0.25)
    assert state.bad_share < 0.02 and state.steps > 195


def test_a_wide_run_keeps_its_median() -> None:
    """Samples of unequal length: no cluster, however wide."""
    seconds = noisy(400, 1.0, spread=0.25)
    assert good_state(run_of(seconds)).seconds == pytest.approx(float(np.median(seconds)), rel=0.02)


def test_troubles_are_told_apart() -> None:
    seconds = noisy(300, 1.0)
    seconds[:3] = [30.0, 4.0, 1.5]
    seconds[[99, 199]] = 9.0
    seconds[149] = 6.0
    seconds[220] = 7.0
    seconds[240:250] = 1.4
    events = (
        Event(kind="checkpoint", line=995, step=99),
        Event(kind="evaluation", line=1501, step=150),
        Event(kind="checkpoint", line=1995, step=199),
    )
    state = good_state(run_of(seconds, events))
    assert state.seconds == pytest.approx(1.0, rel=0.005)
    counts = {name: left.steps for name, left in state.left_out.items()}
    assert counts == {"warm-up": 3, "evaluation": 1, "checkpoint": 2, "straggler": 10, "stall": 1}
    assert state.left_out["checkpoint"].extra_seconds == pytest.approx(16.0, rel=0.01)
    assert state.bad_share == pytest.approx(11 / 297)


def test_slow_steps_at_one_distance_are_periodic() -> None:
    seconds = noisy(400, 1.0)
    seconds[49::50] = 3.0
    state = good_state(run_of(seconds))
    assert state.left_out["periodic"].steps == 8 and state.bad_share == 0.0


def test_of_two_states_the_faster_is_good() -> None:
    seconds = np.concatenate([noisy(60, 1.0), noisy(140, 3.2, seed=4)])
    state = good_state(run_of(seconds))
    assert state.seconds == pytest.approx(1.0, rel=0.01) and state.bad_share == pytest.approx(0.7)


def test_a_few_fast_steps_are_no_state() -> None:
    seconds = noisy(200, 1.0)
    seconds[[50, 90]] = 0.2
    state = good_state(run_of(seconds))
    assert state.seconds == pytest.approx(1.0, rel=0.01) and state.left_out["fast"].steps == 2


def test_warm_up_follows_every_start() -> None:
    seconds = noisy(100, 1.0)
    seconds[[0, 50, 51]] = 5.0
    state = good_state(run_of(seconds, (Event(kind="restart", line=510, step=51),)))
    assert state.left_out["warm-up"].steps == 3


def test_a_single_row_is_its_own_state() -> None:
    assert good_state(run_of([2.5])).seconds == 2.5


def test_no_times_are_said() -> None:
    with pytest.raises(SpecError, match="no step has a time"):
        good_state(run_of([float("nan")] * 3))


def test_rows_count_by_the_steps_that_they_cover(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    file.write_text("step,step_time_ms,loss\n1,9000,11\n2,1000,10\n3,1010,9\n4,990,8\n")
    run = read_run(file)
    assert run.trainer == "table" and list(run.steps.seconds) == [9.0, 1.0, 1.01, 0.99]
    assert good_state(run).seconds == pytest.approx(1.0) and good_state(run).left_out["warm-up"].steps == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("step,loss\n1,2\n", "line 1: no column has times"),
        ("step,seconds\n1,fast\n", "line 2: 'fast' is not a number"),
        ("step,seconds\n1,1.0\n2,-3\n", "line 3: -3 is out of range"),
        ("step,seconds\n1,1.0,7\n", "line 2: 3 cells for 2 columns"),
        ("step,seconds\n", "has no rows"),
    ],
)
def test_malformed_tables_are_refused_by_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "run.csv"
    file.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_run(file)


def test_rates_need_the_batch(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    file.write_text("step,tokens_per_sec_per_gpu\n1,1000\n2,1000\n")
    with pytest.raises(SpecError, match="no step has a time"):
        good_state(read_run(file))
    assert good_state(read_run(file, global_batch=64, seq_len=1000, gpus=8)).seconds == pytest.approx(8.0)
    pairs = read_run(file, global_batch=64, seq_len=1000, sequences=2, gpus=8)
    assert good_state(pairs).seconds == pytest.approx(16.0)
