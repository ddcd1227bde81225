"""No row of time asks more of a choice than the time that it takes: one that did would cut the best choices off, as rows
inside a stretch of nodes that stands for several occurrences once did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.synthesis.clusters import unequal
from tests.synthesis.test_synthesize import GRAPHS
from tests.synthesis.test_timeline import drawn

from shardwright.synthesis.baselines import Rules, data_parallel, fsdp, hap
from shardwright.synthesis.best_rules import best
from shardwright.synthesis.choice import Choice, step_seconds
from shardwright.synthesis.decisions import decisions
from shardwright.synthesis.integer_program import IntegerProgram, broken, integer_program, time_row
from shardwright.synthesis.linear import LinearRows
from shardwright.synthesis.machines import OVERLAP_SLOWDOWN
from shardwright.synthesis.prices import prices
from shardwright.synthesis.ratios import starts

NET = unequal(network=2e7)


def columns(program: IntegerProgram, first: np.ndarray, choice: Choice) -> np.ndarray:
    x = np.zeros(len(program.costs))
    x[first + choice.rules] = 1.0
    x[len(program.compute) : len(program.compute) + len(choice.sent)] = choice.sent
    x[-1] = choice.seconds.total / program.unit
    return x


@pytest.mark.parametrize("rules", [data_parallel, fsdp, hap])
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_no_row_is_above_the_time_of_a_choice(name: str, rules: Rules) -> None:
    space = decisions(GRAPHS[name](), ranks=NET.ranks, state_ratio=True)
    assert max(space.weights) == 3  # five layers: the middle one stands for three
    for shares in starts(space, NET):
        costs = prices(space, NET, shares)
        choice = best(space, costs, allowed=rules(space, costs), branch=False)
        assert choice is not None
        program = integer_program(space, costs)
        x = columns(program, costs.columns.first, choice)
        assert broken(program, x, 1e-6) == []
        for number, (start, stop) in enumerate(zip(program.rows.starts, program.rows.starts[1:], strict=False)):
            at = program.rows.columns[start:stop]
            if len(x) - 1 in at:
                held = float(np.dot(program.rows.coefficients[start:stop], x[at]))
                assert held >= program.rows.low[number] - 1e-6


def test_rows_inside_a_stretch_that_stands_for_several_would_be() -> None:
    space = decisions(GRAPHS["gpt2"](), ranks=NET.ranks, state_ratio=True)
    above = []
    for network in (2e7, 5e7, 1e8, 2e8, 4e8):
        net = unequal(network=network)
        costs = prices(space, net, starts(space, net)[0])
        choice = best(space, costs, allowed=fsdp(space, costs), branch=False)
        assert choice is not None
        program = integer_program(space, costs)
        careless = replace(program, once=np.ones_like(program.once))
        above += broken(careless, columns(program, costs.columns.first, choice), 1e-6)
    assert above


@given(seed=st.integers(0, 2**32 - 1))
def test_no_row_is_above_the_time_of_a_step(seed: int) -> None:
    """Of any events, also where a sum of the forward (the statistics of a batch norm) waits for the end of the step."""
    events = drawn(seed)
    count, none = len(events.compute), np.zeros(len(events.compute))
    before = np.tril(np.ones((count + 1, count)), -1)
    program = IntegerProgram(
        rows=LinearRows(),
        costs=np.zeros(4 * count + 1),
        compute=events.compute,
        waited=np.concatenate([none, events.blocking, none, none]),
        behind=np.concatenate([none, events.deferred, none]),
        ahead=np.concatenate([none, none, events.early]),
        before=before,
        sent_before=np.tile(before, 3),
        edges={},
        unit=1.0,
        once=np.ones(count, dtype=bool),
        passes=(0, events.loss),
    )
    hidden = OVERLAP_SLOWDOWN * (events.deferred.sum() + events.early.sum())
    x = np.append(np.ones(4 * count), step_seconds(events).total - hidden)
    assert broken(program, x, 1e-9) == []
    for row in broken(program, np.append(x[:-1], 0.5 * x[-1]), 1e-9):
        assert time_row(program, row) @ x >= -1e-9 * x[-1]
