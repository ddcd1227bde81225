"""What no program is below: at the shares that it runs with, and at any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.synthesis.clusters import unequal
from tests.synthesis.least import Box, least_in, least_seconds
from tests.synthesis.test_synthesize import GRAPHS, SMALL

from shardwright.synthesis.best_rules import best
from shardwright.synthesis.decisions import decisions
from shardwright.synthesis.graph import FREE
from shardwright.synthesis.models.transformers import language_model
from shardwright.synthesis.prices import RankShares, prices
from shardwright.synthesis.ratios import starts
from shardwright.synthesis.synthesize import search


@pytest.mark.parametrize("gap", [2e-3, 5e-2])
@pytest.mark.parametrize("name", ["gpt2", "wide"])
def test_no_choice_at_the_final_shares_is_below_the_bound(name: str, gap: float) -> None:
    """With fewer rows than the 64 of GPT-2, whole units let the classes of devices take turns in being the slowest from
    one wait to the next: the program's rows of time follow one class through the step, and lie up to 2.5 % below."""
    net, graph = unequal(), language_model(replace(SMALL, causal=True), batch=64, seq_len=8)
    found = search(GRAPHS["wide"]() if name == "wide" else graph, net, gap=gap)
    optimum = best(found.space, prices(found.space, net, found.shares, overlap=True), gap=1e-6)
    assert optimum is not None
    assert 0.0 < found.choice.bound_seconds <= optimum.seconds.total * (1 + 1e-6)
    assert optimum.seconds.total <= found.choice.seconds.total * (1 + 1e-6)
    assert found.choice.seconds.total <= found.choice.bound_seconds * (1 + 2 * gap)


@pytest.mark.parametrize("name", ["gpt2", "wide"])
def test_what_an_earlier_search_left_does_not_change_the_answer(name: str) -> None:
    net = unequal()
    space = decisions(GRAPHS[name](), ranks=net.ranks, state_ratio=True)
    first, second = starts(space, net)[:2]
    before = best(space, prices(space, net, first))
    costs = prices(space, net, second)
    assert before is not None
    alone, helped = best(space, costs), best(space, costs, hint=before.hint)
    assert alone is not None and helped is not None
    assert helped.bound_seconds <= alone.seconds.total and alone.bound_seconds <= helped.seconds.total
    assert helped.seconds.total == pytest.approx(alone.seconds.total, rel=1e-3)


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
