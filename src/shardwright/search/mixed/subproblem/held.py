"""Which layers stages may hold: distinct runs of them, where most stages hold the like."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Ints
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.mixed.tables.columns import RUNNING, Layers, Table, levelled

FIRST, INNER, LAST = 0, 1, 2


@record(kw_only=False)
class Runs:
    """Runs of layers that stages of a table hold, `begin` to `end` [K], of which no two are alike. `at` says which one
    a stage holds, with the `most` layers first and a single one last: where layers are alike by its place, [3, most],
    where some are not (`unlike`) by how many layers it and the stages after it hold, [L + 1, most]."""

    table: Table
    begin: Ints
    end: Ints
    at: Ints
    unlike: bool

    @property
    def most(self) -> int:
        return int(self.at.shape[1])


def most_together(layers: Layers, weight: float) -> int:
    """Return how many layers that follow each other, at most and not all, count as `weight` or less: one at least."""
    sums = np.append(0.0, np.cumsum(layers.weight))
    counts = range(1, len(layers.weight))
    return max([1, *(count for count in counts if (sums[count:] - sums[:-count]).min() <= weight)])


def runs_of(table: Table, layers: Layers, most: int) -> Runs:
    """Return the runs of up to `most` layers. Where layers are alike all are like the least one."""
    count = table.layers
    held = most - np.arange(most)
    if layers.whole:
        begin = np.array([0 * held, 0 * held + 1, count - held])
        return Runs(levelled(table), begin.ravel(), (begin + held).ravel(), np.arange(3 * most).reshape(3, most), False)
    columns = [np.diff(getattr(table, name), axis=-1)[..., 1:-1].reshape(-1, count) for name in RUNNING]
    _, kinds = np.unique(coarse(np.concatenate(columns)), axis=1, return_inverse=True)
    names: list[int] = kinds.ravel().tolist()
    runs: dict[tuple[int, ...], tuple[int, int, int]] = {}
    at = np.zeros((count + 1, most), dtype=np.int64)
    for start in range(count):
        for place in range(most):
            stop = min(start + most - place, count)
            key = (start == 0, stop == count, *names[start:stop])
            at[count - start, place] = runs.setdefault(key, (len(runs), start, stop))[0]
    _, first, last = np.array(list(runs.values())).T
    return Runs(table, first, last, at, True)
