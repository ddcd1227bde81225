"""The linear relaxation of the program over compositions, by the primal simplex method on few rows.

    max v x   subject to   A x <= b,  x >= 0,  b >= 0

There are as many rows as GPU types and one, and up to many thousand columns, so a step is one product of the columns
with the prices. Only v changes between calls: the last basis stays feasible, and few steps lead to the next optimum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.records import record
from shardwright.rounding import DIGITS, weighed

MOST_STEPS = 400


@record
class Relaxed:
    """The optimum of a relaxation: its `value`, the `prices` [R] of the rows, `reduced_costs` [N] (what a column costs
    at these prices beyond its own value), and how much of each column the solution has, `amounts`. Where the method
    stopped early, the prices still cover every column, and the value is a bound of the optimum."""

    value: float
    prices: Floats
    reduced_costs: Floats
    amounts: Mapping[int, float]


@dataclass(slots=True)
class Relaxation:
    """Columns [N, R], limits [R], and the basis that the next optimum is looked for from: a column's number, or -1 - r
    for the slack of row r."""

    columns: Floats
    limits: Floats
    basis: list[int]
    inverse: Floats

    def optimum(self, value: Floats) -> Relaxed:
        """(P4) Return the optimum where columns are worth `value` [N]."""
        if not len(self.columns):
            none = np.zeros(0)
            return Relaxed(value=0.0, prices=np.zeros(len(self.limits)), reduced_costs=none, amounts={})
        prices = self._prices(value)
        reduced_costs = np.round(weighed(self.columns, prices) - value, DIGITS)
        rounded = round(float((prices * self.limits).sum()), DIGITS)
        return Relaxed(value=rounded, prices=prices, reduced_costs=reduced_costs, amounts=self._amounts())

    def _prices(self, value: Floats) -> Floats:
        """Return prices [R], not negative, at which every column costs at least its `value` [N]. The first of the
        columns that gain as much but for rounding enters the basis."""
        scale = max(float(value.max()), 1e-300)
        prices = np.zeros(len(self.limits))
        for step in range(MOST_STEPS):
            worth = np.array([value[name] if name >= 0 else 0.0 for name in self.basis])
            prices = weighed(self.inverse.T, worth)
            gain = np.round((value - weighed(self.columns, prices)) / scale, DIGITS)
            spare = np.round(prices / scale, DIGITS)
            best, slack = int(gain.argmax()), int(spare.argmin())
            if gain[best] <= 0.0 and spare[slack] >= 0.0:
                break
            if gain[best] >= -spare[slack] or (step > MOST_STEPS // 2 and gain[best] > 0.0):
                self._enter(best, self.columns[best])
            else:
                self._enter(-1 - slack, np.eye(len(self.limits))[slack])
        prices = np.maximum(prices, 0.0)
        short = (value - weighed(self.columns, prices)) / self.columns.sum(axis=1)
        return np.asarray(prices + max(float(short.max()), 0.0))

    def widened(self, columns: Array) -> Relaxation:
        """Return the relaxation with `columns`, which begin with those of this one; the basis stays."""
        return Relaxation(columns.astype(np.float64), self.limits, list(self.basis), self.inverse)

    def _amounts(self) -> dict[int, float]:
        """Return how much of each column in the basis there is."""
        values = np.round(weighed(self.inverse, self.limits), DIGITS)
        return {name: float(x) for name, x in zip(self.basis, values, strict=True) if name >= 0 and x > 0.0}

    def _enter(self, name: int, column: Floats) -> None:
        """Put a column into the basis, in place of the one that first reaches zero."""
        amount = weighed(self.inverse, self.limits)
        change = weighed(self.inverse, column)
        rising = change > 1e-11
        ratio = np.where(rising, np.maximum(amount, 0.0) / np.where(rising, change, 1.0), np.inf)
        leaving = int(np.round(ratio, DIGITS).argmin())
        if not rising[leaving]:
            return
        self.basis[leaving] = name
        rows = len(self.limits)
        self.inverse = inverse(
            np.stack([self.columns[at] if at >= 0 else np.eye(rows)[-1 - at] for at in self.basis]).T
        )


def inverse(matrix: Floats) -> Floats:
    """Return the inverse of a small matrix [R, R], by Gauss and Jordan with the largest pivots. It has as
    few rows as there are GPU types: plain numbers are faster than arrays."""
    rows = len(matrix)
    both: list[list[float]] = np.concatenate([matrix, np.eye(rows)], axis=1).tolist()
    for place in range(rows):
        pivot = max(range(place, rows), key=lambda row: abs(round(both[row][place], DIGITS)))
        chosen = both[pivot]
        both[pivot] = both[place]
        both[place] = [value / chosen[place] for value in chosen]
        for row in {*range(rows)} - {place}:
            factor = both[row][place]
            both[row] = [value - factor * taken for value, taken in zip(both[row], both[place], strict=True)]
    return np.array(both)[:, rows:]


def relaxation(columns: Array, limits: Array) -> Relaxation:
    """Return the relaxation with all slacks in the basis."""
    rows = len(limits)
    return Relaxation(
        columns=columns.astype(np.float64),
        limits=limits.astype(np.float64),
        basis=[-1 - row for row in range(rows)],
        inverse=np.eye(rows),
    )
