"""Whole units for exact shares."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats, Ints


def rounded(shares: Floats, units: int) -> Ints:
    """Return whole units that add up to `units` and whose largest overrun, units / (share · all units), is the least.

    Largest remainders first, then units move from the rank that overruns most to the one that would overrun least,
    while that helps. A rank without a share gets nothing.
    """
    exact = shares / shares.sum() * units
    held = np.floor(exact + 1e-9).astype(np.int64)
    left = units - int(held.sum())
    order = np.lexsort((np.arange(len(shares)), -(exact - held)))
    held[order[:left]] += 1
    cost = np.divide(1.0, shares, out=np.full(len(shares), np.inf), where=shares > 0)
    for _ in range(units):
        over = np.multiply(held, cost, out=np.zeros(len(shares)), where=held > 0)
        after = (held + 1) * cost
        most, least = int(np.argmax(over)), int(np.argmin(after))
        if after[least] >= over[most] * (1 - 1e-12) or most == least:
            break
        held[most] -= 1
        held[least] += 1
    return np.asarray(held, dtype=np.int64)


def overrun(shares: Floats, held: Ints) -> float:
    """Return by how much the rank that overruns most exceeds its share."""
    there = shares > 0
    return float((held[there] / held.sum() / shares[there]).max()) - 1.0
