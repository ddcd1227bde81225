"""Better rules near a choice: a few decisions that hang together are free at a time, all others stay, and an integer
program over what is left finds their best (large neighbourhood search; Shaw, 1998).

Where the network is slow the linear relaxation lies far below the best, and whole numbers near it are poor.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.arrays import Bools, Ints
from shardwright.synthesis.choice import Choice, chosen, columns_of
from shardwright.synthesis.decisions import Decisions
from shardwright.synthesis.integer_program import IntegerProgram, broken, integer_program, time_row
from shardwright.synthesis.linear import restricted, solve
from shardwright.synthesis.memory import fits
from shardwright.synthesis.prices import Prices

FREE = 16  # decisions at a time
STRIDE = 8  # decisions from one neighbourhood to the next
NODES = 4  # of branch and bound in each
GAIN = 1e-4  # relative; what improves less does not count
MOST = 60  # neighbourhoods


def improved(space: Decisions, costs: Prices, choice: Choice, allowed: Bools) -> Choice:
    """Return the choice, or a better one of `allowed` rules [R] that fits."""
    program = integer_program(space, costs)
    for row in choice.hint.rows if choice.hint else ():
        program.rows.add_dense(time_row(program, row), low=0.0)
    near = neighbourhoods(space)
    missed = number = 0
    while missed < len(near) and number < MOST:
        better = _best_near(space, costs, program, choice, near[number % len(near)], allowed)
        missed, number = (missed + 1, number + 1) if better is None else (0, number + 1)
        choice = better or choice
    return choice


def neighbourhoods(space: Decisions) -> list[Ints]:
    """Return decisions that lie near each other: each shares a tensor with one before it."""
    beside: list[set[int]] = [set() for _ in space.decisions]
    end = len(space.decisions) - 1
    for use in space.uses:
        both = {use.decision, *(reader.decision for reader in use.readers)} - {end}
        for decision in both:
            beside[decision] |= both - {decision}
    return [_around(start, beside) for start in range(0, end, STRIDE)]


def _around(start: int, beside: list[set[int]]) -> Ints:
    group = [start]
    for decision in group:
        group += sorted(beside[decision] - set(group))
        if len(group) >= FREE:
            break
    return np.array(group[:FREE])


def _best_near(
    space: Decisions, costs: Prices, program: IntegerProgram, choice: Choice, free: Ints, allowed: Bools
) -> Choice | None:
    """Return a better choice that differs in `free` decisions alone."""
    values = columns_of(space, costs, program, choice)
    part = restricted(program.costs, program.rows, values, _free(space, costs, program, free))
    upper = np.concatenate([allowed, np.ones(len(values) - len(allowed))])[part.columns]
    upper[-1] = values[-1] * (1 - GAIN)
    integer = part.columns < len(costs.compute)
    found = solve(part.costs, part.rows, lower=np.zeros(len(upper)), upper=upper, integer=integer, most_nodes=NODES)
    if found.status == "infeasible" or not len(found.values):
        return None
    values[part.columns] = found.values
    better = chosen(space, costs, values, choice.bound_seconds)
    if better.seconds.total < choice.seconds.total * (1 - GAIN) and fits(space, better.rules, costs.net, costs.shares):
        return replace(better, hint=choice.hint)
    for row in broken(program, values, GAIN):
        program.rows.add_dense(time_row(program, row), low=0.0)
    return None


def _free(space: Decisions, costs: Prices, program: IntegerProgram, free: Ints) -> Bools:
    """Return the columns that free decisions move: their rules, and all of the tensors that they make or read."""
    moved = np.zeros(len(space.decisions), dtype=bool)
    moved[free] = True
    touched = np.array(
        [moved[use.decision] or any(moved[reader.decision] for reader in use.readers) for use in space.uses]
    )
    edges = [touched[number] for number, _, _, _ in program.edges]
    return np.concatenate([moved[costs.columns.decision], touched[costs.columns.use], edges, [True]])
