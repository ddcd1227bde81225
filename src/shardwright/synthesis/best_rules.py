"""The best rules at fixed shares: the integer program's linear relaxation first, then whole numbers near it, and branch
and bound only where those are further from the bound than asked for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.records import record
from shardwright.synthesis.choice import Choice, Hint, chosen, columns_of
from shardwright.synthesis.decisions import Decisions
from shardwright.synthesis.integer_program import (
    Edge,
    IntegerProgram,
    TimeRow,
    broken,
    integer_program,
    memory_row,
    time_row,
)
from shardwright.synthesis.linear import Solution, WarmRelaxation, solve
from shardwright.synthesis.memory import class_bytes, held_by
from shardwright.synthesis.prices import Prices

ROUNDS = 12  # of adding rows that a solution breaks
FITTINGS = 4  # of adding rows of memory, which cost a program each
NODES = 60  # of a branch and bound
WORK = 1_000_000  # nodes of all branch and bound times the coefficients of the program; what is left open is in the gap
TIGHT = 1e-3  # relative; by less than this a row of time may be broken
BACK = 16  # steps of a dive that may lead nowhere
SURE = 0.9  # what a relaxation takes to this part is taken at once


def best(
    space: Decisions, costs: Prices, *, gap: float = 1e-3, allowed: Bools | None = None, hint: Hint | None = None,
    branch: bool = True, below: float = np.inf, known: Choice | None = None,
) -> Choice | None:  # fmt: skip
    """Return the best choice among `allowed` rules [R], None if none is found that fits the memory or none can take
    less than `below` seconds. Without `branch` whole numbers near the relaxation are all that is tried, unless there
    are none. `known` is a choice that fits, at these prices."""
    program = integer_program(space, costs)
    upper = np.ones(len(program.costs))
    upper[-1] = np.inf
    if allowed is not None:
        upper[: len(allowed)] = allowed
    rows = [row for row in (hint.rows if hint else ()) if row.device < program.compute.shape[1]]
    for row in rows:
        program.rows.add_dense(time_row(program, row), low=0.0)
    bound = np.inf  # of the program without rows 8, which what does not fit here might not break
    for _ in range(FITTINGS):
        choice, values = _fastest(space, costs, program, upper, gap, rows, hint, branch, below, known)
        if choice is None or values is None:
            return None
        bound = min(bound, choice.bound_seconds)
        if not _overfull(space, costs, program, choice.rules, values):
            return replace(choice, bound_seconds=bound)
        rows, hint = list(choice.hint.rows) if choice.hint else rows, choice.hint
    return None


def _fastest(
    space: Decisions, costs: Prices, program: IntegerProgram, upper: Floats, gap: float, rows: list[TimeRow],
    hint: Hint | None, branch: bool, below: float, known: Choice | None,
) -> tuple[Choice | None, Floats | None]:  # fmt: skip
    """Return the best choice under the rows that there are, with its columns."""
    lower = np.zeros(len(upper))
    fits = hint is not None and len(hint.basis.row_status) == len(program.rows.low)
    relaxation = WarmRelaxation(
        program.costs, program.rows, lower=lower, upper=upper, start=hint.basis if hint and fits else None
    )
    solution, more = _tightened(program, relaxation, gap / 4, below)
    bound = solution.bound * program.unit
    if solution.status == "infeasible" or bound >= below:
        return None, None
    rows = rows + more
    left = Hint(tuple(rows), relaxation.basis())
    values = _dive(relaxation, solution.values, costs)
    choice = None if values is None else chosen(space, costs, values, bound)
    if known is not None and (choice is None or known.seconds.total <= choice.seconds.total):
        choice = replace(known, bound_seconds=min(bound, known.seconds.total))
        values = columns_of(space, costs, program, known)
    if choice is None or (branch and choice.gap > gap):
        if choice is not None and values is not None:
            # A column whose reduced cost is more than the gap is in no better choice.
            room = choice.seconds.total / program.unit - solution.bound
            upper = np.where((solution.reduced_costs <= room) | (values > 0), upper, 0.0)
        choice, values = _branched(space, costs, program, lower, upper, gap, bound, choice, values)
    return (None, None) if choice is None else (replace(choice, hint=left), values)


def _tightened(
    program: IntegerProgram, relaxation: WarmRelaxation, gap: float, below: float = np.inf
) -> tuple[Solution, list[TimeRow]]:
    """Return the solution of a relaxation, and the rows 6 that were added because solutions before broke them."""
    rows: list[TimeRow] = []
    for _ in range(ROUNDS):
        solution = relaxation.solve()
        if solution.status == "infeasible" or solution.bound * program.unit >= below:
            break
        more = broken(program, solution.values, gap)
        if not more:
            break
        rows += more
        for row in more:
            program.rows.add_dense(time_row(program, row), low=0.0)
            relaxation.add(time_row(program, row), 0.0)
    return solution, rows


def _overfull(space: Decisions, costs: Prices, program: IntegerProgram, rules: Ints, values: Floats) -> bool:
    """Return whether a choice holds more than some device has, and add the rows that it breaks: for each class of
    devices the moment at which it holds most."""
    net = costs.net
    if not np.isfinite(net.limits).any():
        return False
    held_bytes = held_by(space, rules, net, costs.shares)
    levels = class_bytes(held_bytes, net, costs.shares)
    full = np.flatnonzero(levels.max(axis=0) > net.limits * (1 + 1e-9))
    for machine in full.tolist():
        moment = int(levels[:, machine].argmax())
        row = memory_row(space, costs, program.edges, len(program.costs), int(held_bytes.node[moment]))[:, machine]
        beside = float(levels[moment, machine] - row @ values)
        program.rows.add_dense(row / net.limits[machine], high=1.0 - beside / float(net.limits[machine]))
    return len(full) > 0


def _dive(relaxation: WarmRelaxation, values: Floats, costs: Prices) -> Floats | None:
    """Return columns with a rule for each decision: what the relaxation is sure of is held, with the surest of the
    rest, and the relaxation solved again. What leads nowhere is taken back: of several the surest is held alone, and
    one alone is ruled out. None if even that leads nowhere."""
    starts = costs.columns.first
    ends = np.append(starts[1:], len(costs.compute))
    free = np.ones(len(starts), dtype=bool)
    left = BACK
    while True:
        x = values[: len(costs.compute)]
        most = np.maximum.reduceat(x, starts)
        free &= ends - starts > 1
        open_ = free & (most < 1 - 1e-6)
        if not open_.any():
            return values
        surest = np.argmax(np.where(open_, most, -1.0))
        sure = free & (most >= SURE)
        if not (sure & open_).any():
            sure[surest] = True
        for held in [np.flatnonzero(sure), np.array([surest])][int(sure.sum() == 1) :]:
            picked = starts[held] + [int(np.argmax(x[starts[decision] : ends[decision]])) for decision in held]
            relaxation.hold(picked, 1.0, 1.0)
            solution = relaxation.solve()
            if solution.status == "optimal":
                free[held] = False
                break
            relaxation.hold(picked, 0.0, 1.0)
            left -= 1
        else:
            relaxation.hold(picked, 0.0, 0.0)
            solution = relaxation.solve()
        if solution.status != "optimal" or left < 0:
            return None
        values = solution.values


def _branched(
    space: Decisions, costs: Prices, program: IntegerProgram, lower: Floats, upper: Floats, gap: float, bound: float,
    best: Choice | None, values: Floats | None,
) -> tuple[Choice | None, Floats | None]:  # fmt: skip
    """Return the best choice of branch and bound, starting from what was found, with its columns; rows of time are
    added as they are broken."""
    integer = np.zeros(len(program.costs), dtype=bool)
    integer[: len(costs.compute)] = True
    nodes = 0
    for _ in range(ROUNDS):
        size = len(program.rows.columns)
        left = min(NODES, (WORK - nodes * size) // size)
        if best is not None and left < 1:
            break
        start = None
        if best is not None and values is not None:
            slowed = float(program.costs[:-1] @ values[:-1])
            start = np.append(values[:-1], best.seconds.total / program.unit - slowed)
        solution = solve(
            program.costs,
            program.rows,
            lower=lower,
            upper=upper,
            integer=integer,
            gap=gap,
            start=start,
            most_nodes=max(left, 1),
        )
        if solution.status == "infeasible" or not len(solution.values):
            return best, values
        bound, nodes = max(bound, solution.bound * program.unit), nodes + solution.nodes
        choice = chosen(space, costs, solution.values, bound)
        if best is None or choice.seconds.total < best.seconds.total:
            best, values = choice, solution.values
        more = broken(program, solution.values, gap / 2)
        if not more or best.seconds.total <= bound * (1 + gap):
            break
        for row in more:
            program.rows.add_dense(time_row(program, row), low=0.0)
    assert best is not None
    return replace(best, bound_seconds=min(bound, best.seconds.total), nodes=nodes), values


@record
class ProgramBound:
    """The linear relaxation: a lower bound of the time, and by how much each column adds to it if it is taken."""

    bound_seconds: float
    rules: Floats
    sent: Floats
    edges: dict[Edge, float]


def relaxed(space: Decisions, costs: Prices) -> ProgramBound:
    """Return the linear relaxation (rows 1 to 7). A choice takes at least the bound and the reduced costs of what it
    takes."""
    program = integer_program(space, costs)
    width, count, sent = len(program.costs), len(costs.compute), len(costs.seconds)
    relaxation = WarmRelaxation(program.costs, program.rows, lower=np.zeros(width), upper=np.full(width, np.inf))
    solution, _ = _tightened(program, relaxation, TIGHT)
    extra = np.maximum(solution.reduced_costs, 0.0) * program.unit
    return ProgramBound(
        bound_seconds=solution.bound * program.unit,
        rules=extra[:count],
        sent=extra[count : count + sent],
        edges={edge: float(extra[column]) for edge, column in program.edges.items()},
    )
