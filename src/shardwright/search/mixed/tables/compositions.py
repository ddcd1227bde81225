"""Which units of each type a replica may have, in which orders of their types, and how many layers at its ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from math import comb, factorial

import numpy as np

from shardwright.arrays import Bools, Ints, picked
from shardwright.records import record

MOST = 6_000  # compositions of a setting
MOST_ORDERED = 6_000  # compositions times orders of types, up to which each order is looked at
FEW = 4  # numbers for an end for each of which splits are made; of more, those splits count that have one by themselves


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


@record
class Arrangement:
    """Compositions `counts` [N, G] with the positions `start` [N, G] at which their types begin, and which begin and
    end the pipeline, `begins` and `ends` [N, G]. Where the order is not `known`, each type begins as late as it can."""

    counts: Ints
    stages: Ints
    start: Ints
    begins: Bools
    ends: Bools
    known: bool

    def take(self, rows: Ints) -> Arrangement:
        parts = {name: picked(getattr(self, name), rows) for name in ("counts", "start", "begins", "ends")}
        return Arrangement(**parts, stages=self.stages[rows], known=self.known)


def any_order(counts: Ints) -> Arrangement:
    """Return compositions in whatever order of their types is best for each."""
    counts = np.asfortranarray(counts)
    stages, no = counts.sum(axis=1), np.zeros_like(counts, dtype=bool)
    return Arrangement(counts=counts, stages=stages, start=stages[:, None] - counts, begins=no, ends=no, known=False)


def every_order(counts: Ints) -> Arrangement:
    """Return each composition in all orders of its types: rows of the first order, then those of the next one."""
    counts = np.asfortranarray(counts)
    stages = counts.sum(axis=1)
    parts = []
    for order in permutations(np.flatnonzero(counts.any(axis=0)).tolist()):
        start, at = np.zeros_like(counts), np.zeros(len(counts), dtype=np.int64)
        for kind in order:
            start[:, kind] = at
            at = at + counts[:, kind]
        parts.append(start)
    start = np.concatenate(parts)
    counts, stages = np.concatenate([counts] * len(parts)), np.tile(stages, len(parts))
    there = counts > 0
    return Arrangement(
        counts=counts,
        stages=stages,
        start=start,
        begins=there & (start == 0),
        ends=there & (start + counts == stages[:, None]),
        known=True,
    )


def few_orders(counts: Ints) -> bool:
    """Return whether all orders of the types of all compositions can be looked at."""
    return len(counts) * factorial(int(counts.any(axis=0).sum())) <= MOST_ORDERED


@record
class Ends:
    """Layers that the `first` and the `last` stage may have; nothing where any number will do."""

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def kept(self, starts: Ints) -> Ints:
        """Return those of the splits [N, P + 1] whose ends have what they may have."""
        kept = np.ones(len(starts), dtype=bool)
        for layers, wanted in ((starts[:, 1], self.first), (starts[:, -1] - starts[:, -2], self.last)):
            kept &= np.isin(layers, wanted) if wanted else True
        return starts if kept.all() else starts[kept]

    def pairs(self) -> Iterator[tuple[int | None, int | None]]:
        """Yield numbers for the first and the last stage, None where a split is free to have any."""
        yield from product(_few(self.first), _few(self.last))


def _few(wanted: tuple[int, ...]) -> tuple[int | None, ...]:
    return wanted if 0 < len(wanted) <= FEW else (None,)
