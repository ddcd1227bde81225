"""Which units of each type a replica may have."""

from __future__ import annotations

from math import comb

import numpy as np

from shardwright.arrays import Ints, picked

MOST = 6_000  # compositions of a setting


def deepest(units: Ints, layers: int) -> int:
    """Return the most stages of a replica for which all compositions can be listed."""
    depth = int(min(layers, units.sum()))
    types = int((units > 0).sum())
    while depth > 1 and comb(depth + types, types) > MOST:
        depth -= 1
    return depth


def compositions(units: Ints, depth: int, shortest: int = 2) -> Ints:
    """Return all ways to take `shortest` to `depth` of `units` [G], as rows [N, G]."""
    limits = [int(min(count, depth)) for count in units]
    rows = np.zeros((1, 0), dtype=np.int64)
    total = np.zeros(1, dtype=np.int64)
    for limit in limits:
        size = len(rows)
        more = np.arange(limit + 1)
        rows = np.column_stack([np.repeat(rows, limit + 1, axis=0), np.tile(more, size)])
        total = np.repeat(total, limit + 1) + rows[:, -1]
        keep = total <= depth
        rows, total = rows[keep], total[keep]
    return picked(rows, total >= shortest)
