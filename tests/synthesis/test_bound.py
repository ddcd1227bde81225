"""The bound of a program is of the shares that it runs with: no choice of rules at those shares is below it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.synthesis.clusters import unequal
from tests.synthesis.test_synthesize import GRAPHS, SMALL

from shardwright.synthesis.best_rules import best
from shardwright.synthesis.decisions import decisions
from shardwright.synthesis.models.transformers import language_model
from shardwright.synthesis.prices import prices
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
