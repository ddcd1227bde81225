"""The chance to keep a limit: its ends, its order, and the interval that it comes from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports.costed import costed

from shardwright.cost.trust.evidence import ceiling
from shardwright.cost.trust.interval import carried, chance_within
from shardwright.search.planner import plan
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model

FOUND = costed().prediction
assert FOUND is not None


def test_the_ends_of_the_interval_are_its_tenth_and_ninetieth_percentile() -> None:
    low, high = carried(FOUND, 100.0)
    assert chance_within(FOUND, 100.0, low) == pytest.approx(0.1)
    assert chance_within(FOUND, 100.0, 100.0) == pytest.approx(0.5)
    assert chance_within(FOUND, 100.0, high) == pytest.approx(0.9)


@given(st.floats(0.1, 1e6), st.floats(0.1, 1e6), st.floats(1.0, 10.0))
def test_more_time_is_never_less_sure(expected: float, limit: float, more: float) -> None:
    assert 0.0 <= chance_within(FOUND, expected, limit) <= chance_within(FOUND, expected, limit * more) <= 1.0


def test_what_costs_nothing_keeps_every_budget() -> None:
    assert chance_within(FOUND, 0.0, 0.0) == 1.0
    assert chance_within(FOUND, 5.0, 0.0) == 0.0


def test_an_interval_does_not_begin_before_what_any_run_may_reach() -> None:
    """Four RTX 3090s, of which no run is published, were "80% sure" to compute 7 % faster than they can."""
    model, cluster = load_model("qwen2.5-7b"), load_cluster("1x4xRTX3090")
    found = plan(model, cluster, make_job(global_batch=64, seq_len=4096)).best.prediction
    assert found is not None and found.mfu > 0.65
    low, high = found.interval
    most = ceiling("Ampere", "bf16")
    assert low == pytest.approx(found.mfu / most * found.iteration_seconds)
    assert low < found.iteration_seconds < high and 0.7 < most < 0.85
