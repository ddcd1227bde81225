"""Measures of how good predictions are, on plain arrays."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from shardwright.arrays import Array, Bools, Floats, Ints


def absolute_errors(predicted: Floats, measured: Floats) -> Floats:
    """Return |predicted / measured - 1| of each pair, [N]."""
    return np.asarray(np.abs(predicted / measured - 1.0))


def covered(low: Floats, high: Floats, measured: Floats) -> Bools:
    """Return whether each measurement is within its interval, ends included, [N]."""
    return np.asarray((low <= measured) & (measured <= high))


def kendall_tau(first: Floats, second: Floats) -> float:
    """Return Kendall's rank correlation, tau-b, of two columns [N]: 1 for the same order, -1 for the opposite one.

    (C - D) / sqrt((n0 - n1) (n0 - n2)) over concordant and discordant pairs, with n0 pairs in all, n1 and n2 of them
    tied in either column (M. G. Kendall, The treatment of ties in ranking problems, Biometrika 33, 1945), in
    O(n log^2 n). Not a number where a column has only one value.
    """
    one, two = _ranks(first), _ranks(second)
    pairs = len(one) * (len(one) - 1) // 2
    tied_one, tied_two = _tied_pairs(one), _tied_pairs(two)
    if pairs in (tied_one, tied_two):
        return math.nan
    both = _tied_pairs(_ranks(one * (len(one) + 1) + two))
    discordant = _inversions(two[np.lexsort((two, one))])
    difference = pairs - tied_one - tied_two + both - 2 * discordant
    return difference / math.sqrt((pairs - tied_one) * (pairs - tied_two))


def _ranks(values: Array) -> Ints:
    """Return the place of each value among the different ones, from 0."""
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _tied_pairs(ranks: Ints) -> int:
    counts = np.bincount(ranks)
    return int((counts * (counts - 1) // 2).sum())


def _inversions(ranks: Ints) -> int:
    """Return the pairs of which the first is larger. Ranks are sorted by their bits, the highest first: among those
    with equal higher bits, every 1 counts the 0s that come after it."""
    found = 0
    higher = np.zeros_like(ranks)
    for bit in range(int(ranks.max(initial=0)).bit_length() - 1, -1, -1):
        order = np.argsort(higher, kind="stable")
        ranks, higher = ranks[order], higher[order]
        ones = (ranks >> bit) & 1
        zeros_until = np.cumsum(1 - ones)
        last = np.searchsorted(higher, higher, side="right") - 1
        found += int(((zeros_until[last] - zeros_until) * ones).sum())
        higher = ranks >> bit
    return found


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
