"""Published runs near a plan, what none of them has, and intervals that widen with it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.trust.evidence import (
    BEYOND,
    DOUBLINGS,
    FACTS,
    LACKS,
    NAMES,
    Conditions,
    ceiling,
    distances,
    lack,
    lacking,
    nearest,
    precedents,
    published,
    seen_in,
    seen_in_published,
)
from shardwright.cost.trust.interval import CAUSES, interval_of, interval_seconds
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.spec.catalog.gpus import gpus


def setting_like(index: int) -> Conditions:
    """Return the setting of a row of the table."""
    runs = published()
    names = dict(zip(NAMES, (str(name) for name in runs.names[index]), strict=True))
    sizes = dict(zip(DOUBLINGS, (float(2.0**size) for size in runs.sizes[index]), strict=True))
    adapters, experts = (bool(flag) for flag in runs.flags[index])
    parameters = float(runs.parameters[index])
    return Conditions(**names, **sizes, parameters=parameters, adapters=adapters, experts=experts)


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


@given(index=rows)
def test_the_published_runs_lack_nothing_of_a_run_that_is_one_of_them(index):
    own = setting_like(index)
    assert lacking(own, seen_in_published()) == ()
    known = precedents((own,))
    assert known.runs >= known.at_scale >= 1 and known.lacking == () and known.kind == own.kind


@given(index=rows)
def test_no_run_is_above_the_record_of_its_class(index):
    own = setting_like(index)
    record = precedents((own,)).record
    assert record is None or record.mfu >= float(published().mfu[index])
    assert record is None or 0.0 < record.mfu < 0.7


@given(index=rows)
def test_no_run_is_above_the_ceiling(index):
    own = setting_like(index)
    assert float(published().mfu[index]) < ceiling(own.architecture, own.precision) <= 1.0
    assert ceiling("another", "bf16") == max(ceiling(name, "bf16") for name in ("Ampere", "Hopper", "Blackwell"))


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
@pytest.mark.parametrize("architecture", sorted({gpu.architecture for gpu in gpus().values()}))
def test_no_architecture_is_bounded_by_one_source(architecture: str, precision: str) -> None:
    """The V100s of AMP's mixed cluster reach 3 % of their peak over Ethernet; a machine of them reaches 40 %."""
    runs = published()
    here = (runs.names[:, NAMES.index("architecture")] == architecture) & (
        runs.names[:, NAMES.index("precision")] == precision
    )
    if len(set(runs.source[here])) < 2:
        assert ceiling(architecture, precision) == ceiling("another", precision) > 0.5


@given(index=rows, fact=st.sampled_from(sorted(FACTS)))
def test_a_fact_that_no_run_has_is_named_and_widens_the_interval(index, fact):
    """Each name of the fact is another one: then the fact is lacking, and so is every other that holds one of them."""
    own = setting_like(index)
    renamed = dict.fromkeys(FACTS[fact], "another")
    other = replace(own, **renamed)
    missing = lacking(other, seen_in_published())
    assert fact in missing
    assert set(missing) >= {name for name, parts in FACTS.items() if set(parts) & set(renamed)}
    narrow, wide = interval_seconds(1.0, own), interval_seconds(1.0, replace(other, framework=own.framework))
    assert wide[0] <= narrow[0] and narrow[1] <= wide[1]


@given(index=rows, left_out=st.integers(0, 10_000))
def test_lacks_are_those_of_a_search_through_all_runs(index, left_out):
    """By hand: a fact is lacking where no run that was seen has it, and a scale beyond the largest of the framework."""
    runs, own = published(), setting_like(index)
    seen = np.random.default_rng(left_out).random(len(runs.seconds)) < 0.02
    gpus = 2.0 ** runs.sizes[:, list(DOUBLINGS).index("gpus")]
    expected = {
        fact
        for fact, parts in FACTS.items()
        if not any(
            all(runs.names[run, NAMES.index(name)] == getattr(own, name) for name in parts)
            for run in np.flatnonzero(seen)
        )
    }
    same = seen & (runs.names[:, NAMES.index("framework")] == own.framework)
    expected |= {"gpus"} if not same.any() or own.gpus > BEYOND * gpus[same].max() else set()
    known = seen_in(runs.names[seen], gpus[seen])
    assert set(lacking(own, known)) == expected
    assert lack(own, known) == pytest.approx(sum(LACKS[fact] for fact in expected))


@given(st.lists(st.floats(0.0, 4.0), min_size=4, max_size=4), st.sampled_from(CAUSES), st.floats(0.0, 4.0))
def test_intervals_widen_with_every_cause(counts, cause, more):
    present = dict(zip(CAUSES, counts, strict=True))
    low, high = interval_of(1.0, "megatron", present)
    wider = interval_of(1.0, "megatron", present | {cause: present[cause] + more})
    assert 0.0 < wider[0] <= low <= 1.0 <= high <= wider[1]


@pytest.mark.parametrize("framework", framework_names())
def test_every_framework_has_an_interval_around_the_prediction(framework):
    own = replace(setting_like(0), framework=framework)
    low, high = interval_seconds(2.0, own)
    assert 0.0 < low < 2.0 < high
    wide_low, wide_high = interval_seconds(2.0, replace(own, gpu="another", architecture="another", family="another"))
    assert wide_low < low and high < wide_high


def test_about_eight_runs_in_ten_are_inside_their_interval():
    """In-domain predictions, each source counting alike, as the intervals are made."""
    runs = published()
    inside = []
    for index in range(0, len(runs.seconds), 7):
        low, high = interval_seconds(1.0, setting_like(index))
        inside.append(math.log(low) <= runs.log_error[index] <= math.log(high))
    assert 0.7 <= np.mean(inside) <= 0.97
