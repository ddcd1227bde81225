"""Programs drawn at random from the table of rules, with random ratios, give the loss and the gradients of one device.

Every operator of every model runs by every rule that it has, on two to four ranks that hold different numbers of units,
some of them none.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spmd.draws import drawn
from tests.spmd.models import CASES
from tests.spmd.steps import require_equal, traced

from shardwright.synthesis.rules.candidates import choices

SEEDS, RANKS = st.integers(0, 1 << 30), st.integers(2, 4)


@pytest.mark.parametrize("name", CASES)
@given(seed=SEEDS, ranks=RANKS)
@settings(max_examples=4)
def test_a_random_program_equals_the_module(name: str, seed: int, ranks: int) -> None:
    case = traced(name)
    require_equal(case, drawn(case.graph, choices(case.graph), ranks, Random(seed)))


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
@given(seed=SEEDS, ranks=RANKS)
@settings(max_examples=200)
def test_many_random_programs_equal_the_module(name: str, seed: int, ranks: int) -> None:
    case = traced(name)
    require_equal(case, drawn(case.graph, choices(case.graph), ranks, Random(seed)))
