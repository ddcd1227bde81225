"""How many layers compositions hold within a bottleneck time, and what of the work of a micro-batch comes before and
after the bottleneck at least. All serves whatever the layer split is.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.stage.relaxed import price
from shardwright.cost.strategies import NONE
from shardwright.rounding import coarse, weighed
from shardwright.search.mixed.bounds.capacity import IMPOSSIBLE, Capacity
from shardwright.search.mixed.tables.columns import Layers, Table
from shardwright.search.mixed.tables.compositions import Arrangement

CLOSE = 1e-6
UNKNOWN = 1e6  # seconds of a message of which no more is known


def held_of(capacity: Capacity, arranged: Arrangement, place: Ints) -> Floats:
    """Return the most layers that the stages of each type hold within the time at `place`, [N, G]: where the order is
    not known, with what is more in the first stage or the last."""
    counts, stages = arranged.counts, arranged.stages
    kinds = np.arange(counts.shape[1])[None, :]
    at, deep = place[:, None], stages[:, None]
    flight = deep - arranged.start if arranged.known else counts
    held = capacity.summed[kinds, at, flight] - capacity.summed[kinds, at, flight - counts]
    with_first = (
        capacity.first[kinds, at, deep - 1] - capacity.inner[kinds, at, deep - 1 if arranged.known else counts - 1]
    )
    with_last = capacity.last[kinds, at] - capacity.inner[kinds, at, 0]
    if arranged.known:
        held = held + np.where(arranged.begins, with_first, 0.0) + np.where(arranged.ends, with_last, 0.0)
    else:
        held = held + np.maximum(with_first, 0.0) + np.maximum(with_last, 0.0)
    return np.where(counts > 0, held, 0.0)


def layers_held(capacity: Capacity, counts: Ints, place: Ints) -> Floats:
    """Return the most layers that compositions hold within the time at `place`, in whatever order of stages."""
    stages = counts.sum(axis=1)
    kinds, at, there = np.arange(counts.shape[1])[None, :], place[:, None], counts > 0
    held = np.where(there, capacity.summed[kinds, at, counts], 0.0).sum(axis=1)
    first = capacity.first[kinds, at, stages[:, None] - 1] - capacity.inner[kinds, at, counts - 1]
    last = capacity.last[kinds, at] - capacity.inner[kinds, at, 0]
    for more in (first, last):
        held = held + np.where(there, more, -np.inf).max(axis=1)
    return np.asarray(held)


def least_work(table: Table, layers: Layers, capacity: Capacity, arranged: Arrangement, place: Ints) -> Floats:
    """Return the least seconds of work of one micro-batch over all stages: a layer on each, the others on the fastest
    type as far as the bottleneck lets them, without recomputation as far as memory does."""
    counts, stages = arranged.counts, arranged.stages
    flight = stages[:, None] - arranged.start if arranged.known else counts
    extra = price(layers.least)
    slopes = np.concatenate([layers.seconds, layers.seconds + extra])
    least = counts * float(layers.weight.min())
    left = layers.total - least.sum(axis=1)
    work = weighed(least, layers.seconds)
    types = counts.shape[1]
    for segment in np.argsort(coarse(slopes), kind="stable"):
        kind = int(segment) % types
        count, end = counts[:, kind], flight[:, kind]
        free = capacity.free[kind, place, end] - capacity.free[kind, place, end - count]
        room = free - least[:, kind]
        if segment >= types:
            room = capacity.summed[kind, place, end] - capacity.summed[kind, place, end - count] - free
        else:
            at_first = capacity.first[kind, place, stages - 1] - capacity.inner[kind, place, stages - 1]
            at_last = capacity.last[kind, place] - capacity.inner[kind, place, 0]
            for more in (at_first, at_last):
                room = room + np.where((count > 0) & (more < -IMPOSSIBLE / 2), np.maximum(more, 0.0), 0.0)
        taken = np.minimum(left, np.maximum(room, 0.0))
        work += slopes[segment] * taken
        left -= taken
    work += weighed(counts, 2.0 * table.each) + 2.0 * moving_seconds(table, counts)
    for edge in (layers.first_seconds, layers.last_seconds):
        work += np.where(counts > 0, edge, np.inf).min(axis=1)
    return work


def moving_seconds(table: Table, counts: Ints) -> Floats:
    """Return the least seconds of all messages of one micro-batch one way, [N]: between units of a machine as long as
    it has some, and across machines where the type changes, at the speed of the slower of two types."""
    inside = np.maximum(counts - 1, 0)
    across = np.minimum(np.maximum(-(-counts // table.local) - 1, 0), inside)
    near = np.minimum(table.near, table.far)
    moves = weighed(inside - across, near) + weighed(across, table.far)
    ordered = np.sort(np.where(counts > 0, table.far, np.inf), axis=1)
    changes = (counts > 0).sum(axis=1) - 1
    if counts.shape[1] > 1:
        moves = moves + np.where(changes > 0, changes * np.where(changes > 0, ordered[:, 1], 0.0), 0.0)
    return np.asarray(moves)


def forward_share(table: Table, layers: Layers, counts: Ints) -> Floats:
    """Return the greatest part of a stage's time that its forward pass can be, [N]: that of a single layer in a first
    stage, which sends a message forward alone, on the slowest links there are. Of a longer one half counts: it bounds a
    pipeline as a backward pass does that takes as long."""
    fabric = np.where(counts > 0, np.maximum(table.near, table.far), 0.0).max(axis=1, keepdims=True)
    moves = fabric if np.isfinite(table.longest_move) else np.full_like(fabric, UNKNOWN)
    least = layers.seconds * layers.weight.min()
    share = (layers.share * least + table.each + moves) / (least + 2.0 * table.each + moves)
    return np.asarray(np.where(counts > 0, np.clip(share, 0.36, 0.5), 0.0).max(axis=1))


def most_hidden(
    table: Table,
    layers: Layers,
    capacity: Capacity,
    arranged: Arrangement,
    place: Ints,
    held: Floats,
    bottleneck: Floats,
    modes: tuple[int, ...],
) -> Floats:
    """Return by how much the stages after the bottleneck are faster than it together, at most, [N], where a stage takes
    `bottleneck` [N] seconds or more, up to the time at `place`, and stages of a type hold `held` [N, G] layers at most.

    Those of a type that cannot take as long are not the bottleneck. What stages before it and itself cannot hold is
    after it: of the layers of a block of stages of type g whose p-th one it is, held_g - p k_g at least, with k_g those
    of the largest stage, less what all stages could hold beyond the model."""
    counts, start = arranged.counts, arranged.start
    kinds, there, deep = np.arange(counts.shape[1])[None, :], counts > 0, arranged.stages[:, None]
    at = place[:, None]
    largest = capacity.inner[kinds, at, np.where(there, deep - start - counts, 0)]
    largest = np.maximum(largest, np.where(arranged.begins, capacity.first[kinds, at, deep - 1], 0.0))
    largest = np.maximum(largest, np.where(arranged.ends, capacity.last[kinds, at], 0.0))
    spare = np.maximum(held.sum(axis=1) - layers.total, 0.0)
    slow = there & _slow_enough(table, layers, capacity, arranged, at, largest, bottleneck, modes)
    busy = held * layers.seconds + counts * (2.0 * table.each)
    most = np.full(len(counts), -np.inf)
    for kind in range(counts.shape[1]):
        later = there & (start > start[:, kind : kind + 1])
        seconds, stages = (busy * later).sum(axis=1), (counts * later).sum(axis=1)
        missing = spare * np.where(later | (kinds == kind), layers.seconds, 0.0).max(axis=1)
        hidden, count = held[:, kind], counts[:, kind]
        size = np.maximum(largest[:, kind], CLOSE)
        rest = np.maximum(hidden - size, 0.0) * layers.seconds[kind] + (count - 1) * 2.0 * table.each[kind]
        as_first = (stages + count - 1) * bottleneck - np.maximum(seconds + rest - missing, 0.0)
        as_last = (stages + count - hidden / size) * bottleneck - np.maximum(seconds - missing, 0.0)
        most = np.where(slow[:, kind], np.maximum(most, np.maximum(as_first, as_last)), most)
    return np.where(np.isfinite(most), np.maximum(most, 0.0), -np.inf)


def _slow_enough(
    table: Table,
    layers: Layers,
    capacity: Capacity,
    arranged: Arrangement,
    at: Ints,
    largest: Floats,
    bottleneck: Floats,
    modes: tuple[int, ...],
) -> Bools:
    """Return which types can have a stage that takes `bottleneck` seconds, [N, G]: all where some of them recompute."""
    if NONE not in modes or not layers.whole:
        return np.ones(largest.shape, dtype=bool)
    kinds, flight = np.arange(largest.shape[1])[None, :], arranged.stages[:, None] - arranged.start
    low = flight - arranged.counts
    summed = capacity.summed[kinds, at, flight] - capacity.summed[kinds, at, low]
    free = capacity.free[kinds, at, flight] - capacity.free[kinds, at, low]
    ends = arranged.begins * layers.first_seconds + arranged.ends * layers.last_seconds
    moves = 2.0 * (table.each + table.longest_move)
    longest = largest * layers.seconds * layers.spread + ends * layers.spread + moves
    slow = (free < summed) | arranged.begins | arranged.ends | (longest >= bottleneck[:, None] * (1.0 - CLOSE))
    return np.asarray(slow)
