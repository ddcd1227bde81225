"""Sets of times as arrays [N, 2] of begin and end, in seconds: sorted, and none touches another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.arrays import Array, Bools, Floats

NOTHING: Floats = np.zeros((0, 2))


def union(begin: Array, end: Array) -> Floats:
    """Return the times that lie in any of the spans `begin` to `end`, [N] each."""
    begin, end = np.asarray(begin, dtype=float), np.asarray(end, dtype=float)
    if not len(begin):
        return NOTHING
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], begin[1:] > reached[:-1]])
    starts = np.flatnonzero(first)
    last = np.concatenate([starts[1:] - 1, [len(begin) - 1]])
    spans = np.stack([begin[starts], reached[last]], axis=1)
    return np.asarray(spans[spans[:, 1] > spans[:, 0]])


def both(first: Floats, second: Floats) -> Floats:
    """Return the times that lie in both sets."""
    return _where(first, second, lambda inside, other: inside & other)


def less(first: Floats, second: Floats) -> Floats:
    """Return the times that lie in the first set alone."""
    return _where(first, second, lambda inside, other: inside & ~other)


def either(first: Floats, second: Floats) -> Floats:
    """Return the times that lie in any of two sets."""
    spans = np.concatenate([first, second])
    return union(spans[:, 0], spans[:, 1])


def seconds(spans: Floats) -> float:
    """Return how long a set is."""
    return float((spans[:, 1] - spans[:, 0]).sum())


def _where(first: Floats, second: Floats, rule: Callable[[Bools, Bools], Bools]) -> Floats:
    times = np.concatenate([first.ravel(), second.ravel()])
    if not len(times):
        return NOTHING
    order = np.argsort(times, kind="stable")
    inside = [
        np.cumsum(np.concatenate(steps)[order]) > 0
        for steps in (
            (np.tile([1, -1], len(first)), np.zeros(2 * len(second), dtype=int)),
            (np.zeros(2 * len(first), dtype=int), np.tile([1, -1], len(second))),
        )
    ]
    sorted_times = times[order]
    kept = rule(inside[0], inside[1])[:-1]
    return union(sorted_times[:-1][kept], sorted_times[1:][kept])
