"""A monotone correction of predicted times, fitted robustly to measured ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Floats

# Chosen: a median of five rows holds against two outliers; six knots follow a curve over six decades of seconds.
ROWS_PER_KNOT, MOST_KNOTS = 5, 6
PRIOR_ROWS = 2.0  # without a deviation, added to each group so that few rows say little; chosen, 1 to 4
SHORTEST_SECONDS = 1e-12  # numeric


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What to add to the logarithm of a predicted time: `shifts` at the predicted log-times `knots`, lines between, and
    constants beyond. The corrected time never falls where the predicted one rises."""

    knots: tuple[float, ...]
    shifts: tuple[float, ...]

    def corrected(self, seconds: Floats) -> Floats:
        """Return corrected times."""
        logs = np.log(np.maximum(seconds, SHORTEST_SECONDS))
        return np.asarray(seconds * np.exp(np.interp(logs, self.knots, self.shifts)))

    def moved(self, shift: float) -> Curve:
        """Return the curve with a constant added."""
        return Curve(knots=self.knots, shifts=tuple(value + shift for value in self.shifts))


def fitted(predicted: Floats, deviation: Floats) -> Curve:
    """Return the curve for log(measured / predicted) = `deviation` [R] at predicted seconds [R].

    The rows fall into groups of equal count by predicted time. Each group's median deviation, drawn towards that of
    all rows, is a knot at its median time; neighbours that would make the corrected time fall are averaged.
    """
    middle = float(np.median(deviation))
    count = min(max(len(predicted) // ROWS_PER_KNOT, 1), MOST_KNOTS)
    logs = np.log(predicted)
    groups = np.array_split(np.argsort(logs, kind="stable"), count)
    knots = np.array([np.median(logs[group]) for group in groups])
    seconds = np.array(
        [(np.median(deviation[group]) - middle) * len(group) / (len(group) + PRIOR_ROWS) for group in groups]
    )
    shifts = middle + seconds
    return _rising(knots, knots + shifts)


def _rising(knots: Floats, corrected: Floats) -> Curve:
    """Return the curve through points, those that fall replaced by averages (pool adjacent violators). Knots at the
    same place become one."""
    pools: list[tuple[float, float, float]] = []  # weight, knot, corrected
    for knot, value in zip(knots, corrected, strict=True):
        pool = (1.0, float(knot), float(value))
        while pools and (pools[-1][2] > pool[2] or pools[-1][1] >= pool[1]):
            pool = _joined(pools.pop(), pool)
        pools.append(pool)
    return Curve(knots=tuple(pool[1] for pool in pools), shifts=tuple(pool[2] - pool[1] for pool in pools))


def _joined(a: tuple[float, float, float], b: tuple[float, float, float]) -> tuple[float, float, float]:
    weight = a[0] + b[0]
    return weight, (a[0] * a[1] + b[0] * b[1]) / weight, (a[0] * a[2] + b[0] * b[2]) / weight
