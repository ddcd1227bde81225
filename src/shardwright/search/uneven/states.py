"""Shares of the state to try: whole numbers for each GPU type, so that they sum exactly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import lcm

import numpy as np

from shardwright.arrays import Floats, Ints, distinct_rows

STEPS = {1: 1, 2: 200, 3: 40, 4: 20}  # of the grid, by the number of types; chosen
FEWEST_STEPS = 10
FINER = 5  # by which the grid is refined around its best points; chosen


def steps_for(types: int) -> int:
    """Return into how many steps the grid cuts the state."""
    return STEPS.get(types, FEWEST_STEPS)


def grid(types: int, steps: int) -> Ints:
    """Return all ways to give `steps` steps of the state to types, [N, G]."""
    if types == 1:
        return np.array([[steps]])
    bars = np.array(list(combinations(range(steps + types - 1), types - 1)), dtype=np.int64).reshape(-1, types - 1)
    ends = np.full((len(bars), 1), steps + types - 1)
    return np.diff(np.concatenate([np.full((len(bars), 1), -1), bars, ends], axis=1), axis=1) - 1


def around(point: Ints, steps: int) -> Ints:
    """Return the points of a grid `FINER` times as fine around a point [G] of one with `steps` steps, [N, G]."""
    offsets = grid_of_offsets(len(point))
    found = point * FINER + offsets
    return distinct_rows(found[(found >= 0).all(axis=1) & (found.sum(axis=1) == steps * FINER)])


def grid_of_offsets(types: int) -> Ints:
    """Return offsets of up to `FINER` for all types but the last, which makes up for them, [N, G]."""
    span = np.arange(-FINER, FINER + 1)
    free = np.stack(np.meshgrid(*[span] * (types - 1), indexing="ij"), axis=-1).reshape(-1, types - 1)
    return np.concatenate([free, -free.sum(axis=1, keepdims=True)], axis=1)


def shares_of(points: Ints, steps: int, counts: Sequence[int]) -> Floats:
    """Return the share of each GPU of a type, [N, G], where the type has `points` of `steps` steps."""
    return np.asarray(points / (steps * np.array(counts)))


def parts_of(point: Ints, steps: int, counts: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the parts that a GPU of each type keeps, and of how many in all: whole numbers in lowest terms."""
    multiple = lcm(*counts)
    parts = [int(steps_of) * (multiple // count) for steps_of, count in zip(point.tolist(), counts, strict=True)]
    common = int(np.gcd.reduce([*parts, steps * multiple]))
    return tuple(part // common for part in parts), steps * multiple // common
