"""A trap: turns of rules and shares that start from shares in proportion to speed end far from the best.

One layer of 256 × 32 numbers, 256 classes, two devices of which one is three times as fast, and a slow network between
them. At proportional shares the best rules send at every layer, and those shares are best for them; the fast device alone
takes two thirds of that time, which turns from even shares find.
"""

from __future__ import annotations

import numpy as np
from tests.synthesis.clusters import pair

from shardwright.synthesis.best_rules import best
from shardwright.synthesis.decisions import decisions
from shardwright.synthesis.models.vgg import fully_connected
from shardwright.synthesis.prices import Shares, prices
from shardwright.synthesis.synthesize import search, starts, turns

NET = pair(speed=3.0, network=670e3)
GRAPH = fully_connected(batch=256, widths=(32, 256))


def test_the_search_passes_the_trap() -> None:
    these = decisions(GRAPH, ranks=2, state_ratio=True)
    from_proportional = turns(these, NET, starts(NET)[0], gap=1e-4)
    assert from_proportional is not None
    joint = np.inf  # the best rules at each of many shares
    for part in np.linspace(0.3, 1.0, 29):
        shares = Shares(exact={"compute": (float(part), float(1 - part)), "state": NET.even()})
        choice = best(these, prices(these, NET, shares), gap=1e-4)
        assert choice is not None
        joint = min(joint, choice.seconds.total)
    assert from_proportional[0].seconds.total > 1.26 * joint
    assert search(GRAPH, NET, gap=1e-4).exact.seconds.total <= 1.005 * joint
