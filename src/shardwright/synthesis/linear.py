"""Linear and integer programs as rows of sparse coefficients, solved by HiGHS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.highs import Coefficients, highs, status
from shardwright.records import record

INFINITY = float("inf")
SETTINGS = {
    # Programs over blocks are small, and nearly solved at the root: these cost more there than they save.
    "mip_heuristic_effort": 0.01,
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
    "mip_allow_restart": False,
    "mip_detect_symmetry": False,
}


@record
class Solution:
    """`values` of the columns, `prices` the dual value of each row and `reduced_costs`
    of each column (linear programs alone), the `objective` and a lower
    `bound` of it. `status` is "optimal", "infeasible" or "stopped"."""

    values: Floats
    prices: Floats
    reduced_costs: Floats
    objective: float
    bound: float
    status: str
    nodes: int = 0


@dataclass(slots=True)
class LinearRows:
    """Rows of a program in the making: low ≤ Σ coefficient · column ≤ high."""

    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    coefficients: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: Mapping[int, float], low: float = -INFINITY, high: float = INFINITY) -> int:
        """Add a row and return its number."""
        self.columns += terms.keys()
        self.coefficients += terms.values()
        self.starts.append(len(self.columns))
        self.low.append(low)
        self.high.append(high)
        return len(self.low) - 1

    def copied(self) -> LinearRows:
        """Return rows that others may be added to."""
        return LinearRows(*(list(getattr(self, column.name)) for column in fields(self)))

    def add_dense(self, row: Floats, low: float = -INFINITY, high: float = INFINITY) -> int:
        """Add a row that is given as all its coefficients."""
        some = np.flatnonzero(row)
        return self.add(dict(zip(some.tolist(), row[some].tolist(), strict=True)), low, high)


@record(kw_only=False)
class Part:
    """A program over some `columns` of another, all others being held."""

    columns: Ints
    costs: Floats
    rows: LinearRows


def restricted(costs: Floats, rows: LinearRows, values: Floats, free: Bools) -> Part:
    """Return the program over the `free` columns, all others being held at `values`."""
    columns, coefficients = np.array(rows.columns), np.array(rows.coefficients)
    row = np.repeat(np.arange(len(rows.low)), np.diff(rows.starts))
    moves = free[columns]
    held = np.bincount(row, np.where(moves, 0.0, coefficients * values[columns]), minlength=len(rows.low))
    counts = np.bincount(row[moves], minlength=len(rows.low))
    kept = counts > 0
    part = LinearRows(
        starts=[0, *np.cumsum(counts[kept]).tolist()],
        columns=(np.cumsum(free) - 1)[columns[moves]].tolist(),
        coefficients=coefficients[moves].tolist(),
        low=(np.array(rows.low) - held)[kept].tolist(),
        high=(np.array(rows.high) - held)[kept].tolist(),
    )
    return Part(np.flatnonzero(free), costs[free], part)


def solve(
    costs: Floats, rows: LinearRows, *, lower: Floats, upper: Floats, integer: Bools | None = None,
    gap: float = 1e-6, most_nodes: int = 1, start: Floats | None = None,
) -> Solution:  # fmt: skip
    """Return the least value of Σ costs · columns. `integer` marks columns that take whole numbers."""
    import highspy

    settings = {**SETTINGS, "mip_rel_gap": gap, "mip_abs_gap": 1e-12, "mip_max_nodes": most_nodes}
    solver = _solver(costs, rows, lower, upper, integer, settings)
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start.tolist()
        solver.setSolution(solution)
    solver.run()
    return _read(solver, integer is not None)


class WarmRelaxation:
    """A linear program that stays in the solver, so that a row or a bound more costs a few pivots. `start` is the
    `basis` of one with the same columns and first rows."""

    def __init__(self, costs: Floats, rows: LinearRows, *, lower: Floats, upper: Floats, start: Any = None) -> None:
        self._solver = _solver(costs, rows, lower, upper, None, {"presolve": "off"})
        if start is not None:
            self._solver.setBasis(start)

    def solve(self) -> Solution:
        self._solver.run()
        return _read(self._solver, False)

    def basis(self) -> Any:
        """Return where the solver stands."""
        return self._solver.getBasis()

    def add(self, row: Floats, low: float) -> None:
        """Add a row low ≤ Σ coefficient · column."""
        some = np.flatnonzero(row).astype(np.int32)
        self._solver.addRow(low, INFINITY, len(some), some, row[some])

    def hold(self, columns: Ints, low: float, high: float) -> None:
        """Hold columns between two values."""
        lower, upper = np.full(len(columns), low), np.full(len(columns), high)
        self._solver.changeColsBounds(len(columns), columns.astype(np.int32), lower, upper)


def _solver(
    costs: Floats, rows: LinearRows, lower: Floats, upper: Floats, integer: Bools | None, settings: Mapping[str, Any]
) -> Any:
    return highs(
        costs,
        Coefficients(starts=rows.starts, places=rows.columns, values=rows.coefficients, by_rows=True),
        lower=lower,
        upper=upper,
        row_lower=rows.low,
        row_upper=rows.high,
        integer=integer,
        settings=settings,
    )


def _read(solver: Any, is_integer: bool) -> Solution:
    info, solution = solver.getInfo(), solver.getSolution()
    objective = float(info.objective_function_value)
    return Solution(
        values=np.array(solution.col_value),
        prices=np.array(solution.row_dual),
        reduced_costs=np.array(solution.col_dual),
        objective=objective,
        bound=float(info.mip_dual_bound) if is_integer else objective,
        status=status(solver),
        nodes=int(info.mip_node_count) if is_integer else 0,
    )
