"""Measures of how good predictions are, of seconds and of what fits, on plain arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwright.arrays import Bools, Floats


def absolute_errors(predicted: Floats, measured: Floats) -> Floats:
    """Return |predicted / measured - 1| of each pair, [N]."""
    return np.asarray(np.abs(predicted / measured - 1.0))


def covered(low: Floats, high: Floats, measured: Floats) -> Bools:
    """Return whether each measurement is within its interval, ends included, [N]."""
    return np.asarray((low <= measured) & (measured <= high))


def kendall_tau(first: Floats, second: Floats) -> float:
    """Return Kendall's rank correlation, tau-b, of two columns [N]: 1 for the same order, -1 for the opposite one.

    Σ a b / sqrt(Σ a² Σ b²) over all pairs, a and b the signs of their differences (M. G. Kendall, The treatment of ties
    in ranking problems, Biometrika 33, 1945). Not a number where a column has only one value.
    """
    left, right = (np.sign(np.subtract.outer(column, column)) for column in (first, second))
    ordered = float((left**2).sum() * (right**2).sum())
    return float((left * right).sum()) / math.sqrt(ordered) if ordered else math.nan


def roc_area(scores: Floats, positive: Bools) -> float:
    """Return the area under the ROC curve: the probability that a positive has a higher score than a negative, ties
    counting half. Not a number without both kinds."""
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return math.nan
    values, place = np.unique(scores, return_inverse=True)
    each_up = np.bincount(place, weights=positive, minlength=len(values))
    each_down = np.bincount(place, weights=~positive, minlength=len(values))
    below = np.cumsum(each_down) - each_down
    return float((each_up * (below + 0.5 * each_down)).sum() / (ups * downs))


def scale_of(gpus: float, limits: tuple[int, ...]) -> str:
    """Return the range of GPUs that a run belongs to, e.g. "9-64", for the upper ends `limits`."""
    for low, high in pairwise((0, *limits)):
        if gpus <= high:
            return f"{low + 1}-{high}"
    return f"{limits[-1] + 1}+"


SURELY_NOT, SURELY = 0.1, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """The area under the ROC curve, the share of runs that ran although their probability is below 0.1, and of those
    that failed although theirs is above 0.9; None where there are no such runs."""

    ran: int
    failed: int
    roc_area: float | None
    ran_below_tenth: float | None
    failed_above_nine_tenths: float | None


def fits_of(probability: Floats, failed: Bools) -> Fits:
    """Return the quality of the probabilities to fit [N] of runs that failed for memory or ran."""
    area = roc_area(-probability, failed)
    ran = ~failed
    return Fits(
        ran=int(ran.sum()),
        failed=int(failed.sum()),
        roc_area=area if math.isfinite(area) else None,
        ran_below_tenth=float(np.mean(probability[ran] < SURELY_NOT)) if ran.any() else None,
        failed_above_nine_tenths=float(np.mean(probability[failed] > SURELY)) if failed.any() else None,
    )
