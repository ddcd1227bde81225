"""Traces: as files, as a generator makes them, and which machines a run has of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.recovery.fleet import machines as cluster_of_machines
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright.errors import SpecError
from shardwright.recovery.simulation.traces import (
    BATCH,
    BATHTUB_A,
    BOOT_SECONDS,
    CAP_HOURS,
    MARKETS,
    Trace,
    generate,
    lifetime_hours,
    read_trace,
    spans,
    trace_of,
    write_trace,
)

PLAN = plan_of(tiny_model(4), replica(stage((0, 4)), count=6, micro_batches=1), cluster=cluster_of_machines(6, 1))
GPU = PLAN.cluster.pools[0].gpu.name


def made(market: int, seed: int = 3, days: float = 7.0) -> Trace:
    return generate(MARKETS[market], gpu=GPU, machines=4, zones=3, days=days, price=2.0, seed=seed)


@pytest.mark.parametrize("market", range(len(MARKETS)))
def test_a_trace_is_the_same_after_a_file_and_for_the_same_seed(tmp_path: Path, market: int) -> None:
    trace = made(market)
    write_trace(tmp_path / "trace.csv", trace)
    again = read_trace(tmp_path / "trace.csv")
    for found in (again, made(market)):
        assert (found.seconds == trace.seconds).all() and (found.machines == trace.machines).all()
        assert found.dollars == pytest.approx(trace.dollars) and found.places == trace.places
    assert (made(market, seed=4).machines.shape, trace.hours) != (trace.machines.shape, 0.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seconds,zone,gpu\n", "has no column machines, dollars_per_machine_hour"),
        ("seconds,zone,gpu,machines,dollars_per_machine_hour\n0,a,g,1,2\n", "fewer than two moments"),
        ("seconds,zone,gpu,machines,dollars_per_machine_hour\n0,a,g,many,2\n", ":2: seconds, machines"),
        ("seconds,zone,gpu,machines,dollars_per_machine_hour\n0,a,g,1,2\n9,a,g,1.5,2\n", ":3: seconds, machines"),
    ],
)
def test_a_bad_trace_is_named_by_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(SpecError) as caught:
        read_trace(tmp_path / "trace.csv")
    assert words in str(caught.value)


def test_most_losses_come_in_batches_by_zone() -> None:
    """What a zone loses within three minutes, in a market of batches: most of it is more than half of its machines."""
    drops = np.concatenate([np.diff(made(1, seed).machines, axis=0).ravel() for seed in range(5)])
    lost = -drops[drops < 0]
    assert lost[lost > 2].sum() / lost.sum() > 0.5


def test_markets_lose_what_they_are_fitted_to() -> None:
    """Half a year of eight zones: machines lost an hour of those that are there, and the share of whole zones in it."""
    for market in MARKETS[:2]:
        lost, together, there = 0.0, 0.0, 0.0
        for seed in range(8):
            trace = generate(market, gpu=GPU, machines=8, zones=8, days=90.0, price=3.0, seed=seed)
            drops = np.maximum(-np.diff(trace.machines, axis=0), 0)
            lost, together = lost + drops.sum(), together + drops[drops > 4].sum()
            there += (trace.machines[:-1] * np.diff(trace.seconds)[:, None]).sum() / 3600.0
        assert lost / there == pytest.approx(market.lost_per_hour, rel=0.1)
        assert together / lost == pytest.approx(BATCH, abs=0.03)


def test_lifetimes_have_the_shape_of_a_bathtub() -> None:
    random = np.random.default_rng(0)
    found = np.array([lifetime_hours(random) for _ in range(4000)])
    assert found.max() <= CAP_HOURS
    for hours in (1.0, 6.0, 20.0):
        expected = BATHTUB_A * (1 - np.exp(-hours) + np.exp((hours - 24.0) / 0.8))
        assert (found < hours).mean() == pytest.approx(expected, abs=0.03)
    early, middle, late = ((found < 3).mean(), ((found > 9) & (found < 12)).mean(), (found > 21).mean())
    assert min(early, late) > 5 * middle


def test_a_run_has_no_more_than_it_wants_and_than_there_are() -> None:
    trace = made(1)
    found = spans(trace, PLAN)
    assert all(one.seconds + one.length == pytest.approx(two.seconds) for one, two in pairwise(found))
    assert sum(span.length for span in found) == pytest.approx(trace.hours * 3600.0)
    for span in found:
        assert len(span.machines) <= 6
        row = int(np.searchsorted(trace.seconds, span.seconds, side="right")) - 1
        for column, (zone, _) in enumerate(trace.places):
            assert sum(machine.zone == zone for machine in span.machines) <= trace.machines[row, column]
    for one, two in pairwise(found):
        gone = {m.name for m in one.machines} - {m.name for m in two.machines}
        assert len(gone) == two.lost


def test_machines_are_spread_over_zones_and_take_time_to_boot() -> None:
    rows = {(time, (zone, GPU)): (4, price) for time in (0.0, 7200.0) for zone, price in (("a", 3.0), ("b", 2.0))}
    first, then = spans(trace_of("steady", rows), PLAN)
    assert (first.machines, first.length, first.dollars_per_hour) == ((), BOOT_SECONDS, 0.0)
    assert sorted(machine.zone for machine in then.machines) == ["a"] * 3 + ["b"] * 3
    assert then.dollars_per_hour == 15.0


def test_a_trace_of_other_gpus_is_refused() -> None:
    rows = {(time, ("a", "other")): (4, 1.0) for time in (0.0, 10.0)}
    with pytest.raises(SpecError, match="has other, and none of the plan"):
        spans(trace_of("other", rows), PLAN)
