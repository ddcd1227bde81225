"""No program at any ratio takes less than what is said to be the least, and more boxes bring that nearer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.synthesis.clusters import unequal
from tests.synthesis.least import Box, least_in, least_seconds
from tests.synthesis.test_synthesize import GRAPHS

from shardwright.synthesis.best_rules import best
from shardwright.synthesis.decisions import decisions
from shardwright.synthesis.graph import FREE
from shardwright.synthesis.prices import RankShares, prices


@pytest.mark.parametrize(("network", "operator_seconds"), [(2e7, 0.0), (1.3e9, 0.0), (1.3e9, 1e-3)])
def test_no_program_at_drawn_ratios_is_below_the_least(network: float, operator_seconds: float) -> None:
    net, draw = unequal(1, 1, network=network), np.random.default_rng(0)
    devices = [replace(one.device, operator_seconds=operator_seconds) for one in net.machines]
    machines = [replace(one, device=device) for one, device in zip(net.machines, devices, strict=True)]
    net = replace(net, machines=tuple(machines))
    space = decisions(GRAPHS["wide"](), ranks=net.ranks, state_ratio=True)
    few, many = (least_seconds(space, net, boxes=boxes) for boxes in (1, 12))
    operators = sum(one.weight for one in space.decisions[:-1] if one.node.op not in FREE)
    assert operators * operator_seconds < few <= many
    for _ in range(8):
        rows = [np.repeat([part, 1 - part], 2) / 2 for part in draw.choice([0.0, 1.0, draw.random()], 3)]
        shares = RankShares(exact=dict(zip(("compute", "features", "state"), map(tuple, rows), strict=True)))
        costs = prices(space, net, shares)
        choice = best(space, costs, branch=False)
        assert choice is not None and many <= choice.seconds.total * (1 + 1e-9)
        # a box of these shares alone is no looser than what is known of every box around it
        here = np.array([[row[0], row[-1]] for row in rows])
        assert many <= least_in(space, net, Box(here, here)) * (1 + 1e-9)
