"""Expected time under interruptions: against a simulation of the run, and the optimum against its approximations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright import load_model, make_job
from shardwright.cost.money import (
    Exposure,
    checkpoint_bytes,
    optimal_interval_seconds,
    stretch,
    stretch_factor,
    young_interval_seconds,
)

RATES = st.floats(-9.0, -1.0).map(lambda power: 10.0**power)
SECONDS = st.floats(-2.0, 4.0).map(lambda power: 10.0**power)


def simulated_seconds(
    random: np.random.Generator, work: float, interval: float, checkpoint: float, mean: float, recovery: float
) -> float:
    """Return how long one run takes that is interrupted at random, segment by segment, restarts included."""
    clock, done, next_stop = 0.0, 0.0, random.exponential(mean)
    while done < work:
        end = clock + interval + checkpoint
        if end <= next_stop:
            clock, done = end, done + interval
            continue
        clock, next_stop = next_stop, next_stop + random.exponential(mean)
        while clock + recovery > next_stop:
            clock, next_stop = next_stop, next_stop + random.exponential(mean)
        clock += recovery
    return clock


@pytest.mark.parametrize(
    ("interval", "checkpoint", "mean", "recovery"),
    [
        (600.0, 30.0, 3600.0, 300.0),
        (300.0, 60.0, 900.0, 600.0),
        (2000.0, 5.0, 20000.0, 60.0),
        (100.0, 50.0, 200.0, 80.0),
    ],
)
def test_expected_time_is_the_mean_of_simulated_runs(
    interval: float, checkpoint: float, mean: float, recovery: float
) -> None:
    random, segments, runs = np.random.default_rng(7), 40, 1500
    work = segments * interval
    seconds = np.array([simulated_seconds(random, work, interval, checkpoint, mean, recovery) for _ in range(runs)])
    one = np.array([1.0])
    expected = work * float(stretch_factor(one / mean, one * interval, one * checkpoint, one * recovery)[0])
    error = seconds.std() / np.sqrt(runs)
    assert abs(seconds.mean() - expected) < 4.0 * error
    assert error < 0.02 * expected


@given(rate=RATES, checkpoint=SECONDS, recovery=SECONDS)
def test_no_interval_does_better_than_the_optimal_one(rate: float, checkpoint: float, recovery: float) -> None:
    one = np.array([1.0])
    best = float(optimal_interval_seconds(one * rate, one * checkpoint)[0])
    tried = best * np.geomspace(0.01, 100.0, 401)
    factors = stretch_factor(np.full(401, rate), tried, np.full(401, checkpoint), np.full(401, recovery))
    assert 0.0 < best < 1.0 / rate
    assert factors[200] <= factors.min() * (1.0 + 1e-9)


@given(rate=RATES, checkpoint=SECONDS)
def test_the_usual_approximations_come_near_where_checkpoints_are_short(rate: float, checkpoint: float) -> None:
    one = np.array([1.0])
    rates, seconds = one * rate, one * checkpoint
    best, young = (float(of(rates, seconds)[0]) for of in (optimal_interval_seconds, young_interval_seconds))
    part = rate * checkpoint / 2.0
    daly = young * (1.0 + math.sqrt(part) / 3.0 + part / 9.0) - checkpoint if part < 1.0 else 1.0 / rate  # eq. 37
    if part < 5e-4:
        assert young == pytest.approx(best, rel=0.03)
        assert daly == pytest.approx(best, rel=1e-3)
    assert best <= young * (1.0 + 1e-9)
    none = np.zeros(1)
    least = float(stretch_factor(rates, one * best, seconds, none)[0])
    assert least <= float(stretch_factor(rates, one * daly, seconds, none)[0]) * (1.0 + 1e-9)


def test_without_interruptions_nothing_is_lost_and_no_checkpoint_is_needed() -> None:
    exposure = Exposure(
        interruptions_per_hour=np.array([0.0, 1.0]),
        checkpoint_seconds=np.array([20.0, 0.0]),
        recovery_seconds=np.array([600.0, 0.0]),
    )
    found = stretch(exposure)
    assert found.factor[0] == 1.0
    assert found.interval_seconds[0] == np.inf
    assert found.interval_seconds[1] == 0.0


def test_a_checkpoint_holds_weights_and_optimizer_state() -> None:
    model = load_model("llama-3.2-1b")
    mixed = make_job(global_batch=8, seq_len=1024)
    full = make_job(global_batch=8, seq_len=1024, precision="fp32")
    assert checkpoint_bytes(model, mixed) == 14.0 * model.parameters
    assert checkpoint_bytes(model, full) == 12.0 * model.parameters
