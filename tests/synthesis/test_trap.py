"""Traps: turns of rules and shares that start from shares in proportion to speed end far from the best.

One layer of 256 × 32 numbers, 256 classes, two devices of which one is three times as fast, and a slow network between
them. At proportional shares the best rules send at every layer, and those shares are best for them; the fast device alone
takes a part of that time. Where exactly the trap opens depends on every price, so networks of several speeds are tried.
"""

from __future__ import annotations

import numpy as np
from tests.synthesis.clusters import pair
from tests.synthesis.vgg import fully_connected

from shardwright.synthesis.best_rules import best
from shardwright.synthesis.decisions import Decisions, decisions
from shardwright.synthesis.machines import Machines
from shardwright.synthesis.prices import RankShares, prices
from shardwright.synthesis.ratios import starts
from shardwright.synthesis.synthesize import ProgramProblem, search, turns

GRAPH = fully_connected(batch=256, widths=(32, 256))


def test_the_search_passes_the_traps() -> None:
    space = decisions(GRAPH, ranks=2, state_ratio=True)
    trapped = 0
    for network in np.geomspace(400e3, 1.1e6, 4):
        net = pair(speed=3.0, network=float(network))
        joint = best_over_shares(space, net)
        from_proportional = turns(ProgramProblem(space=space, net=net, gap=1e-4, overlap=True), starts(space, net)[0])
        assert from_proportional is not None
        trapped += from_proportional[0].seconds.total > 1.26 * joint
        assert search(GRAPH, net, gap=1e-4).exact.seconds.total <= 1.005 * joint
    assert trapped >= 1


def best_over_shares(space: Decisions, net: Machines) -> float:
    """Return the seconds of the best rules over many shares."""
    found = np.inf
    for part in np.linspace(0.3, 1.0, 15):
        shares = RankShares(exact={"compute": (float(part), float(1 - part)), "state": net.even()})
        choice = best(space, prices(space, net, shares), gap=1e-4)
        assert choice is not None
        found = min(found, choice.seconds.total)
    return found
