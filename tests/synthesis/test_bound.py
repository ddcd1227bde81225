"""The bound of a program is of the shares that it runs with: no choice of rules at those shares is below it."""

from __future__ import annotations

import pytest
from tests.synthesis.clusters import unequal
from tests.synthesis.test_synthesize import GRAPHS

from shardwright.synthesis.integer_program import best
from shardwright.synthesis.prices import prices
from shardwright.synthesis.synthesize import search


@pytest.mark.parametrize("gap", [2e-3, 5e-2])
@pytest.mark.parametrize("name", ["gpt2", "wide"])
def test_no_choice_at_the_final_shares_is_below_the_bound(name: str, gap: float) -> None:
    net = unequal()
    found = search(GRAPHS[name](), net, gap=gap)
    optimum = best(found.these, prices(found.these, net, found.shares, overlap=True), gap=1e-6)
    assert optimum is not None
    assert 0.0 < found.choice.bound_seconds <= optimum.seconds.total * (1 + 1e-6)
    assert optimum.seconds.total <= found.choice.seconds.total * (1 + 1e-6)
    assert found.choice.seconds.total <= found.choice.bound_seconds * (1 + 2 * gap)
