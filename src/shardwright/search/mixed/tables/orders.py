"""Compositions in the orders of their types: where in the pipeline the stages of each type are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from math import factorial

import numpy as np

from shardwright.arrays import Bools, Ints, picked

MOST_ORDERED = 6_000  # compositions times orders of types, up to which each order is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
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
