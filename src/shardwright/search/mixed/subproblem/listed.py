"""In what time a composition can finish some micro-batches, told by its splits one by one, where they are few.

The bottleneck that the time leaves gives each stage a most of layers. Near the least time of a composition these are
hardly more than the model's, and so the splits are few: as many as there are ways to share out what is too much. Their
pipelines are simulated, which the inequalities of `exact` can be some part of a percent below.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations
from math import comb

import numpy as np

from shardwright.arrays import Ints
from shardwright.search.mixed.bounds.compositions import Compositions
from shardwright.search.mixed.bounds.stage_limits import figures, least_moves, stage_layers
from shardwright.search.mixed.bounds.travel import byte_seconds
from shardwright.search.mixed.drafts.split_times import pipeline_seconds, stages, tails, update_seconds
from shardwright.search.mixed.subproblem.exact import MOST_ORDERS, longest_stage
from shardwright.search.mixed.tables.columns import Layers, Table
from shardwright.search.mixed.tables.region import Region

MOST_SPLITS = 2_000  # of each order of the types


def least_of_listed(
    table: Table, layers: Layers, region: Region, column: Compositions, micro_batches: int, seconds: float
) -> float:
    """(P6) Return seconds in which no split of the composition `column`, one of two stages or more, finishes
    `micro_batches`: infinite where none does within `seconds`, zero where there are too many to tell."""
    counts, least = column.counts[0], np.inf
    orders = [np.array(order) for order in permutations(np.flatnonzero(counts).tolist())]
    if not layers.whole or len(orders) > MOST_ORDERS:
        return 0.0
    longest = longest_stage(column, np.array([micro_batches]), seconds)
    whole = layers.total * (layers.dense + layers.expert) + layers.first_parameters + layers.last_parameters
    once = byte_seconds(table, whole, region)
    for order in orders:
        kinds = np.repeat(order, counts[order])
        starts = _splits(table, layers, region, kinds, micro_batches, float(longest[0]))
        if starts is None:
            return 0.0
        found = stages(table, kinds, starts, micro_batches=micro_batches, copies=region.most, modes=region.modes)
        found = found.take(np.flatnonzero(found.fits))
        if len(found):
            moves = least_moves(table, kinds[:-1], kinds[1:])
            later = sum(part.max(axis=1) for part in tails(table, found, once[kinds] * found.parameters))
            later = later + update_seconds(table, kinds, found, region.most).max(axis=1)
            later = later + table.tied_between(kinds, len(kinds))
            least = min(least, float((pipeline_seconds(found, moves, micro_batches) + later).min()))
    least += float(table.norm_seconds(int(counts.sum()) * region.fewest)[0, counts > 0].max())
    return least if least <= seconds * (1.0 + 1e-9) else np.inf


def _splits(
    table: Table, layers: Layers, region: Region, kinds: Ints, micro_batches: int, longest: float
) -> Ints | None:
    """Return all splits [N, P + 1] whose stages take no longer than `longest` seconds, None where they are too many."""
    depth = len(kinds)
    flight = np.minimum(micro_batches, depth - np.arange(depth)).astype(np.float64)
    of = figures(table, layers, region.most).take(kinds)
    most = stage_layers(of, flight, np.array([longest * (1.0 + 1e-9)]), region.modes, layers)[0]
    most = np.minimum(np.floor(most + 1e-9), table.layers - depth + 1).astype(np.int64)
    more = int(most.sum()) - table.layers
    if most.min() < 1 or more < 0:
        return np.zeros((0, depth + 1), dtype=np.int64)
    if comb(more + depth - 1, depth - 1) > MOST_SPLITS:
        return None
    held = most - _shared(more, depth)
    held = held[(held >= 1).all(axis=1)]
    return np.concatenate([np.zeros((len(held), 1), dtype=np.int64), np.cumsum(held, axis=1)], axis=1)


@lru_cache(maxsize=256)
def _shared(number: int, parts: int) -> Ints:
    """Return all ways to share out `number` over `parts`, [N, parts]."""
    if parts == 1:
        return np.array([[number]])
    rest = [(first, _shared(number - first, parts - 1)) for first in range(number + 1)]
    return np.concatenate([np.column_stack([np.full(len(more), first), more]) for first, more in rest])
