"""The recomputation that fits: the fewest layers where time grows with their number, the leanest groups where only
memory depends on their size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, distinct, least_enough


def fewest_layers(most: Ints, fits: Callable[[Ints], Bools]) -> tuple[Ints, Bools]:
    """Return, for each of N, the least number of layers from 1 to `most` whose recomputation `fits`, and whether any
    does. Memory falls with the number."""
    most = np.maximum(most, 1)
    possible = fits(most)
    return least_enough(np.ones_like(most), np.where(possible, most, 1), fits), possible


def leanest_group(lengths: Ints, alone: bool, needed: Callable[[Ints], Floats]) -> tuple[Ints, Floats]:
    """Return, for each of N, the size of the groups that run again together with which least is `needed`, the smallest
    of equals, and what that is. `lengths` are those of the stages; with `alone` a group is a layer."""
    counts = [] if alone else distinct(lengths).tolist()
    # Of all sizes that make equally many groups of a stage, the least is the leanest.
    sizes = sorted({-(-length // groups) for length in counts for groups in range(1, length + 1)} | {1})
    best = np.ones(len(lengths), dtype=np.int64)
    least = np.full(len(lengths), np.inf)
    for size in sizes:
        bytes_needed = needed(np.full(len(lengths), size, dtype=np.int64))
        best = np.where(bytes_needed < least, size, best)
        least = np.minimum(bytes_needed, least)
    return best, least
