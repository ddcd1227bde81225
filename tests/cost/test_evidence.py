"""Published runs near a plan, and intervals that widen with their distance."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.trust.evidence import DOUBLINGS, NAMES, Conditions, distances, nearest, published
from shardwright.cost.trust.interval import Spread, interval_seconds, widened
from shardwright.spec.catalog.frameworks import framework_names


def setting_like(index: int) -> Conditions:
    """Return the setting of a row of the table."""
    runs = published()
    names = dict(zip(NAMES, (str(name) for name in runs.names[index]), strict=True))
    sizes = dict(zip(DOUBLINGS, (float(2.0**size) for size in runs.sizes[index]), strict=True))
    return Conditions(**names, **sizes, adapters=bool(runs.flags[index, 0]), experts=bool(runs.flags[index, 1]))


rows = st.integers(0, len(published().seconds) - 1)


@given(index=rows)
def test_a_run_is_nearest_to_its_own_setting(index):
    far = distances(setting_like(index), published())
    assert far[index] == pytest.approx(0.0, abs=1e-4)
    assert (far >= 0.0).all()


@given(index=rows, name=st.sampled_from(sorted(DOUBLINGS)), doublings=st.integers(1, 6))
def test_other_sizes_and_names_are_farther(index, name, doublings):
    own = setting_like(index)
    other = replace(own, **{name: getattr(own, name) * 2.0**doublings})
    assert distances(other, published())[index] == pytest.approx(doublings / DOUBLINGS[name], abs=1e-3)
    assert distances(replace(own, gpu="another"), published())[index] > 0.0


@given(index=rows)
def test_no_published_run_is_near_machines_at_several_sites(index):
    own = setting_like(index)
    low, high = interval_seconds(1.0, own)
    wider = interval_seconds(1.0, replace(own, sites=2))
    assert distances(replace(own, sites=2), published()).min() >= 1.5
    assert wider[0] <= low and high <= wider[1]


@given(index=rows)
def test_evidence_is_sorted_and_every_run_comes_once(index):
    found = nearest(setting_like(index), 5)
    assert [run.distance for run in found] == sorted(run.distance for run in found)
    assert len({(run.source, round(run.distance, 6)) for run in found}) == len(found) == 5
    assert all(run.source and run.tokens_per_second > 0.0 and run.predicted_tokens_per_second > 0.0 for run in found)


@given(
    low=st.floats(0.0, 1.0),
    high=st.floats(0.0, 1.0),
    growth=st.floats(0.0, 2.0),
    near=st.floats(0, 4),
    more=st.floats(0, 4),
)
def test_intervals_widen_with_distance(low, high, growth, near, more):
    spread = Spread(low=low, high=high, growth=growth)
    (inner_low, inner_high), (outer_low, outer_high) = widened(spread, near), widened(spread, near + more)
    assert outer_low <= inner_low <= 0.0 <= inner_high <= outer_high


@pytest.mark.parametrize("framework", framework_names())
def test_every_framework_has_an_interval_around_the_prediction(framework):
    own = replace(setting_like(0), framework=framework)
    low, high = interval_seconds(2.0, own)
    assert 0.0 < low < 2.0 < high
    far = replace(own, gpu="another", architecture="another", hidden=own.hidden * 64)
    wide_low, wide_high = interval_seconds(2.0, far)
    assert wide_low < low and high < wide_high


def test_about_eight_runs_in_ten_are_inside_their_interval():
    """In-domain predictions, each source counting alike, as the intervals are made."""
    runs = published()
    inside = []
    for index in range(0, len(runs.seconds), 7):
        low, high = interval_seconds(1.0, setting_like(index))
        inside.append(math.log(low) <= runs.log_error[index] <= math.log(high))
    assert 0.7 <= np.mean(inside) <= 0.97
