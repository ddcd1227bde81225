"""Measures of predictions, against brute force and known values."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shardwright.arrays import places_by_value
from shardwright.validation.summary import absolute_errors, covered, kendall_tau, roc_area, scale_of

FEW_VALUES = st.integers(0, 5).map(float)
MANY_VALUES = st.floats(-1e6, 1e6, allow_nan=False)
COLUMNS = st.integers(2, 40).flatmap(
    lambda n: st.tuples(*(arrays(float, n, elements=st.one_of(FEW_VALUES, MANY_VALUES)) for _ in range(2)))
)


def tau_by_pairs(first, second) -> float:
    """Return tau-b by looking at every pair."""
    signs = [
        (np.sign(first[i] - first[j]), np.sign(second[i] - second[j])) for i, j in combinations(range(len(first)), 2)
    ]
    agree = sum(a * b for a, b in signs)
    norm = math.sqrt(sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs))
    return agree / norm if norm else math.nan


@given(COLUMNS)
def test_tau_is_that_of_all_pairs(columns) -> None:
    found, wanted = kendall_tau(*columns), tau_by_pairs(*columns)
    assert found == pytest.approx(wanted, abs=1e-12, nan_ok=True)


@given(COLUMNS)
def test_tau_is_symmetric_and_turns_with_the_order(columns) -> None:
    first, second = columns
    assert kendall_tau(first, second) == pytest.approx(kendall_tau(second, first), abs=1e-12, nan_ok=True)
    assert kendall_tau(first, -second) == pytest.approx(-kendall_tau(first, second), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("first", "second", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [3, 1, 2, 5, 4], 0.4),  # 7 concordant pairs, 3 discordant
        ([1, 1, 2, 3], [1, 2, 2, 3], 4 / 5),  # 4 concordant pairs, one tied in each column
    ],
)
def test_tau_of_known_orders(first, second, tau) -> None:
    assert kendall_tau(np.array(first, float), np.array(second, float)) == pytest.approx(tau)


@pytest.mark.parametrize("length", [0, 1, 5])
def test_tau_of_a_column_without_order_is_not_a_number(length) -> None:
    assert math.isnan(kendall_tau(np.ones(length), np.arange(length, dtype=float)))


def test_tau_of_many_values() -> None:
    first = np.random.default_rng(7).permutation(2_000).astype(float)
    assert kendall_tau(first, first) == 1.0
    assert abs(kendall_tau(first, np.arange(2_000.0))) < 0.05


@given(
    st.lists(st.tuples(FEW_VALUES, st.booleans()), min_size=1, max_size=40),
)
def test_roc_area_is_the_chance_that_a_positive_scores_higher(scored) -> None:
    scores, positive = (np.array(column) for column in zip(*scored, strict=True))
    pairs = [(up > down) + 0.5 * (up == down) for up in scores[positive] for down in scores[~positive]]
    wanted = float(np.mean(pairs)) if pairs else math.nan
    assert roc_area(scores, positive) == pytest.approx(wanted, nan_ok=True)


def test_errors_are_relative_to_the_measurement() -> None:
    errors = absolute_errors(np.array([1.2, 0.8, 2.0]), np.array([1.0, 1.0, 4.0]))
    assert errors == pytest.approx([0.2, 0.2, 0.5])


def test_an_interval_covers_its_ends() -> None:
    inside = covered(np.array([1.0, 1.0, 1.0, 1.0]), np.full(4, 2.0), np.array([0.99, 1.0, 2.0, 2.01]))
    assert inside.tolist() == [False, True, True, False]


@given(arrays(np.int64, st.integers(0, 30), elements=st.integers(0, 4)))
def test_parts_hold_every_place_once_with_equal_codes(codes) -> None:
    found = places_by_value(codes)
    assert sorted(place for part in found for place in part) == list(range(len(codes)))
    assert [codes[part[0]] for part in found] == sorted(set(codes.tolist()))
    assert all(len(set(codes[part])) == 1 for part in found)


@pytest.mark.parametrize(
    ("gpus", "scale"),
    [(1, "1-8"), (8, "1-8"), (9, "9-64"), (64, "9-64"), (512, "65-512"), (513, "513+"), (1e5, "513+")],
)
def test_scales_meet_without_gaps(gpus, scale) -> None:
    assert scale_of(gpus, (8, 64, 512)) == scale
