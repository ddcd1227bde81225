"""The doubt of what hardly any published run has: its counts are those of the runs that ship, its formula by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shardwright.cost.strategies import ZERO2, strategies
from shardwright.cost.trust.rarity import doubts, rare_in, rare_switches
from shardwright.validation.published import published_runs


def test_counts_are_those_of_the_published_runs() -> None:
    runs = published_runs()
    offloaded = [run for run in runs if "offload" in run.notes.casefold()]
    zero2 = [run for run in runs if run.zero_or_fsdp_stage == 2]
    interleaved = [run for run in runs if (run.vpp or 1) > 1]
    deep = [run for run in interleaved if (run.vpp or 1) > 12]
    counted = {switch.axis: (switch.runs, switch.of) for switch in rare_switches()}
    assert counted == {
        "offload": (len(offloaded), len(runs)),
        "sharding": (len(zero2), len(runs)),
        "vpp": (len(deep), len(interleaved)),
    }


def test_each_factor_of_ten_is_two_percent_and_parts_add_up() -> None:
    rows = strategies([{}, {"offload": 0.25}, {"sharding": ZERO2}, {"vpp": 12}, {"vpp": 13, "offload": 1.0}])
    rare, deep = 0.02 * math.log10(3103 / 5), 0.02 * math.log10(134 / 9)
    np.testing.assert_allclose(doubts(rows), [0.0, rare, rare, 0.0, rare + deep], rtol=1e-9)
    assert rare == pytest.approx(0.0559, abs=1e-4)


def test_what_a_strategy_has_is_named() -> None:
    (row,) = [strategies([{"vpp": 20, "offload": 0.5}])]
    assert [switch.name for switch in rare_in(row)] == ["optimizer offload", "more than 12 virtual stages"]
    assert rare_in(strategies([{}])) == ()
