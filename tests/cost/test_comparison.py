"""How sure: the chance to keep a limit, and a comparison of two plans: closer plans, narrower intervals; what the
shipped steps are made of.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports.costed import costed
from tools.refit import ratios
from tools.refit.training import timed_cases

from shardwright import Plan, load_cluster, load_model, make_job, plan
from shardwright.cost.trust.evidence import ceiling
from shardwright.cost.trust.interval import SHARED, carried, chance_within, ratio_interval, steps, unlikeness
from shardwright.validation.case import Case
from shardwright.validation.runs import published_runs

SWEEP = "Ultra-Scale Playbook sweep (H100)"


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, ...]:
    job = make_job(global_batch=64, seq_len=2048)
    return plan(load_model("llama-3.1-8b"), load_cluster("1x8xA100-SXM-80+1x8xH100-SXM"), job, top=4).plans


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return timed_cases([run for run in published_runs() if run.source == SWEEP])[::10]


def width(interval: tuple[float, float]) -> float:
    return interval[1] / interval[0]


def test_swapped_plans_have_the_inverse_and_a_plan_beside_itself_is_alike(plans: tuple[Plan, ...]) -> None:
    mine, other = plans[0], plans[-1]
    low, high = ratio_interval(mine, other)
    assert (1.0 / high, 1.0 / low) == pytest.approx(ratio_interval(other, mine))
    same = ratio_interval(mine, mine)
    assert same[0] * same[1] == pytest.approx(1.0)
    assert width(same) <= width((low, high)) * (1.0 + 1e-12)  # of logarithms and back


def test_plans_on_other_gpus_share_half_of_their_errors_or_nothing(plans: tuple[Plan, ...]) -> None:
    mine = plans[0]
    seconds, (low, high) = mine.iteration_seconds, mine.predicted.interval
    independent = 2.0 * np.hypot(np.log(seconds / low), np.log(high / seconds))
    other_model = replace(mine, model=replace(mine.model, name="another"))
    assert np.log(width(ratio_interval(mine, other_model))) == pytest.approx(independent)
    replica = mine.replicas[0]
    mixed = replace(replica, stages=(replace(replica.stages[0], gpu="L4"), *replica.stages))
    other_gpus = replace(mine, replicas=(mixed,))
    assert np.log(width(ratio_interval(mine, other_gpus))) == pytest.approx(independent * np.sqrt(1.0 - SHARED))


def test_unlikeness_is_half_of_what_moves_and_half_of_the_ratio() -> None:
    parts, others = np.array([[1.0, 1.0], [1.0, 3.0]]), np.array([[2.0, 2.0], [3.0, 1.0]])
    assert unlikeness(parts, others).tolist() == pytest.approx([0.5 * np.log(2.0), 0.5])


def test_steps_rise_from_nothing() -> None:
    starts, heights = steps()
    assert starts[0] == 0.0
    assert (np.diff(starts) > 0.0).all() and (np.diff(heights) >= 0.0).all()


def test_steps_hold_four_of_five_pairs(cases: list[Case]) -> None:
    """Of predictions that are off by random factors, alike for pairs that are alike."""
    pick = np.random.default_rng(0)
    measured = np.array([case.run.seconds for case in cases], dtype=float)
    parts = pick.uniform(0.5, 1.5, (len(cases), 3))
    pairs = ratios.pairs_of(cases, measured * np.exp(pick.normal(0.0, 0.1, len(cases))), parts)
    assert len(pairs.error) > 20
    half = ratios.heights(pairs)[pairs.step]
    assert 0.7 <= (pairs.error <= half).mean() <= 0.9
    exact = ratios.pairs_of(cases, measured, parts)
    assert np.nanmax(ratios.heights(exact)) == pytest.approx(0.0, abs=1e-12)
    header, *rows = ratios.ratios_csv(pairs).splitlines()
    assert header == "unlike,log_ratio,pairs,sources" and len(rows) == len(ratios.EDGES)


FOUND = costed().predicted


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
    found = plan(model, cluster, make_job(global_batch=64, seq_len=4096)).best.predicted
    assert found.mfu > 0.65
    low, high = found.interval
    most = ceiling("Ampere", "bf16")
    assert low == pytest.approx(found.mfu / most * found.iteration_seconds)
    assert low < found.iteration_seconds < high and 0.7 < most < 0.85
