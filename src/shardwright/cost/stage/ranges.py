"""Which layers stages have, and sums over them: one subtraction of running sums each.

Running sums [M, L + 3] go over the positions of a model: the embedding 0, layers from 1, the head last; those of states
[M, 3, L + 3] have one for each state of a layer (`terms`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Array, Bools, Columns, Floats, Ints
from shardwright.cost.stage.terms import STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges(Columns):
    """Stages in an array of any shape: the row of each in layer tables, its positions from `low` to `high`, and those
    of its layers alone, `begin` to `end`."""

    row: Ints
    low: Ints
    high: Ints
    begin: Ints
    end: Ints

    @property
    def length(self) -> Ints:
        """The layers of each stage."""
        return self.end - self.begin

    def total(self, running: Floats, state: Array | int | None = None) -> Floats:
        """Return the sum over all positions."""
        return _between(running, self.row, self.low, self.high, state)

    def layers(self, running: Floats, state: Array | int | None = None) -> Floats:
        """Return the sum over the layers."""
        return _between(running, self.row, self.begin, self.end, state)

    def first(self, running: Floats, count: Array | int, state: Array | int | None = None) -> Floats:
        """Return the sum over the first `count` layers, over all where there are fewer."""
        return _between(running, self.row, self.begin, np.minimum(self.begin + count, self.end), state)


def _between(running: Floats, row: Ints, low: Ints, high: Ints, state: Array | int | None) -> Floats:
    flat, row = running.reshape(-1), row if state is None else row * STATES + state
    row = row * running.shape[-1]
    return np.asarray(flat.take(row + high) - flat.take(row + low))


def of_pipelines(row: Ints, starts: Ints, layers: int) -> Ranges:
    """Return the virtual stages [N, V] of pipelines whose layers, those of row `row` [N], start at `starts` [N, V + 1].
    The first stage has the embedding, the last the head."""
    where = starts + 1
    low, high = where[:, :-1].copy(), where[:, 1:].copy()
    low[:, 0], high[:, -1] = 0, layers + 2
    return Ranges(
        row=np.broadcast_to(row[:, None], low.shape), low=low, high=high, begin=where[:, :-1], end=where[:, 1:]
    )


def of_stages(row: Ints, begin: Ints, end: Ints, layers: int) -> tuple[Ranges, Bools]:
    """Return stages of whatever pipelines, [R], with layers `begin` to `end`, one or more, and which have the head.
    What begins with the first layer has the embedding, what ends with the last the head."""
    last = end == layers
    low = np.where(begin > 0, begin + 1, 0)
    return Ranges(row=row, low=low, high=end + 1 + last, begin=begin + 1, end=end + 1), np.asarray(last)


def per_rank(values: Array, virtual_stages: int) -> Array:
    """Return per-virtual-stage values [N, v * P] as [N, v, P]."""
    return values.reshape(len(values), virtual_stages, -1)
