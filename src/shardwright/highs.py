"""Linear and integer programs, handed to HiGHS: quiet, on one thread, equal answers for equal input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.records import record

SETTINGS: Mapping[str, bool | int] = MappingProxyType({"output_flag": False, "threads": 1, "random_seed": 0})


@record
class Coefficients:
    """A sparse matrix, row by row or column by column: line i has the `values` from `starts[i]` to `starts[i + 1]`, at
    these `places` across."""

    starts: Sequence[int] | Ints
    places: Sequence[int] | Ints
    values: Sequence[float] | Floats
    by_rows: bool


def by_columns(row: Ints, column: Ints, value: Floats, columns: int) -> Coefficients:
    """Return the matrix of entries [E] at these rows and columns, each in one place."""
    order = np.lexsort((row, column))
    starts = np.append(0, np.cumsum(np.bincount(column, minlength=columns)))
    return Coefficients(starts=starts, places=row[order], values=value[order], by_rows=False)


def highs(
    costs: Floats,
    matrix: Coefficients,
    *,
    lower: Floats,
    upper: Floats,
    row_lower: Sequence[float] | Floats,
    row_upper: Sequence[float] | Floats,
    integer: Bools | None = None,
    maximised: bool = False,
    settings: Mapping[str, Any],
) -> Any:
    """Return a solver of the least value of Σ costs · columns (the greatest, if it is `maximised`), with columns and
    rows within limits. `integer` marks columns that take whole numbers; `settings` go beside `SETTINGS`."""
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(costs), len(row_lower)
    lp.sense_ = highspy.ObjSense.kMaximize if maximised else highspy.ObjSense.kMinimize
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = costs, lower, upper
    lp.row_lower_, lp.row_upper_ = np.asarray(row_lower), np.asarray(row_upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise if matrix.by_rows else highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.asarray(matrix.starts, dtype=np.int32)
    lp.a_matrix_.index_ = np.asarray(matrix.places, dtype=np.int32)
    lp.a_matrix_.value_ = np.asarray(matrix.values, dtype=np.float64)
    if integer is not None:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(kind)] for kind in integer]
    solver = _quiet_solver()()
    for name, setting in {**SETTINGS, **settings}.items():
        solver.setOptionValue(name, setting)
    solver.passModel(lp)
    return solver


@cache
def _quiet_solver() -> type[Any]:
    """Return the class of solvers that are silent from their first call on: HiGHS 1.16 greets on standard output as
    soon as callbacks are enabled, which its constructor does, before any option can be set."""
    import highspy

    class QuietSolver(highspy.Highs):
        def enableCallbacks(self) -> None:  # noqa: N802
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    return QuietSolver


def status(solver: Any) -> str:
    """Return how a solver ended: "optimal", "infeasible" or "stopped"."""
    import highspy

    known = highspy.HighsModelStatus
    words = {known.kOptimal: "optimal", known.kInfeasible: "infeasible", known.kUnboundedOrInfeasible: "infeasible"}
    return words.get(solver.getModelStatus(), "stopped")
