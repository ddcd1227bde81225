"""Whether a composition can finish some micro-batches in time, told by all of its splits.

The inequalities of `bounds` look at the bottleneck and the work of a split. Here all orders of the types and all splits
that the bottleneck leaves are listed: stages take k_i <= K_i layers and all of them L, so the sum(K_i) - L that are
missing are shared out over the stages in every way. What gradients and weights take after the pipeline is counted split
by split, at its least. Where there are too many splits, nothing is said.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations
from math import comb

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.pipeline.bound import lower_bound
from shardwright.cost.pipeline.simulate import folded
from shardwright.search.mixed.bounds.compositions import Columns
from shardwright.search.mixed.bounds.stage_limits import figures, stage_layers
from shardwright.search.mixed.bounds.travel import byte_seconds
from shardwright.search.mixed.drafts.split_times import Stages, pipeline_seconds, stages, tails
from shardwright.search.mixed.subproblem.pricing import longest_bottleneck
from shardwright.search.mixed.tables.columns import Layers, Table
from shardwright.search.mixed.tables.region import Region

MOST_SPLITS = 4_000
MOST_ORDERS = 24


def impossible(
    table: Table, layers: Layers, region: Region, column: Columns, micro_batches: int, seconds: float
) -> bool:
    """(P6) Return whether no split of the composition of `column` (one row) finishes `micro_batches` within
    `seconds`."""
    counts = column.counts[0]
    depth = int(counts.sum())
    if depth < 2 or not layers.whole:
        return False
    left = seconds - float(column.after[0].min())
    present = [kind for kind in range(len(counts)) if counts[kind]]
    orders = list(permutations(present))
    if len(orders) > MOST_ORDERS:
        return False
    longest = longest_bottleneck(
        np.array([left]),
        column.work[:, -1],
        np.array([micro_batches]),
        np.array([float(depth)]),
        1.0 - column.share,
    )
    if longest[0] <= 0.0:
        return True
    each = [np.repeat(np.array(order), counts[list(order)]) for order in orders]
    found = [_splits(table, layers, region, kinds, micro_batches, longest * (1.0 + 1e-9)) for kinds in each]
    listed = [starts for starts in found if starts is not None]
    if len(listed) < len(found):
        return False
    starts, kinds = np.concatenate(listed), np.repeat(each, [len(own) for own in listed], axis=0)
    least = _least_seconds(table, layers, region, kinds, starts, micro_batches, seconds)
    return least > seconds * (1.0 + 1e-9)


def _splits(
    table: Table, layers: Layers, region: Region, kinds: Ints, micro_batches: int, longest: Floats
) -> Ints | None:
    """Return all splits [N, P + 1] whose stages take no longer than `longest` [1], or None where there are too many."""
    depth = len(kinds)
    flight = np.minimum(micro_batches, depth - np.arange(depth)).astype(np.float64)
    of = figures(table, layers, region.most).take(kinds)
    most = np.floor(stage_layers(of, flight, longest, region.modes, layers)[0] + 1e-9)
    if most.min() < 1.0 or most.sum() < table.layers:
        return np.zeros((0, depth + 1), dtype=np.int64)
    most = np.minimum(most, table.layers - depth + 1).astype(np.int64)
    missing = int(most.sum()) - table.layers
    if missing < 0:
        return np.zeros((0, depth + 1), dtype=np.int64)
    if comb(missing + depth - 1, depth - 1) > MOST_SPLITS:
        return None
    held = most - _shared(missing, depth)
    held = held[(held >= 1).all(axis=1)]
    starts = np.zeros((len(held), depth + 1), dtype=np.int64)
    np.cumsum(held, axis=1, out=starts[:, 1:])
    return starts


@lru_cache(maxsize=256)
def _shared(number: int, parts: int) -> Ints:
    """Return all ways to share out `number` over `parts`, [N, parts]."""
    if parts == 1:
        return np.array([[number]])
    pieces = []
    for first in range(number + 1):
        rest = _shared(number - first, parts - 1)
        pieces.append(np.column_stack([np.full(len(rest), first), rest]))
    return np.concatenate(pieces)


def _least_seconds(
    table: Table, layers: Layers, region: Region, kinds: Ints, starts: Ints, micro_batches: int, enough: float
) -> float:
    """Return the least seconds of the splits `starts` [N, P + 1] on types `kinds` [N, P], with what comes after the
    pipeline; any time above `enough` is as good as another."""
    if not len(starts):
        return np.inf
    found = stages(table, kinds, starts, micro_batches=micro_batches, copies=region.most, modes=region.modes)
    after = _least_after(table, layers, region, kinds, found)
    rows = np.flatnonzero(found.fits & (after <= enough))
    if not len(rows):
        return np.inf
    found, later, moves = found.take(rows), after[rows], _least_moves(table, kinds[rows])
    seconds = later + lower_bound(*folded(found.forward, found.backward, moves), micro_batches)
    rows = np.flatnonzero(seconds <= enough * (1.0 + 1e-9))
    if not len(rows):
        return np.inf
    return float((later[rows] + pipeline_seconds(found.take(rows), moves[rows], micro_batches)).min())


def _least_moves(table: Table, kinds: Ints) -> Floats:
    """Return the least seconds of a message between neighbours, [N, P - 1]."""
    near = np.where(table.local > 1, np.minimum(table.near, table.far), table.far)
    here, there = kinds[:, :-1], kinds[:, 1:]
    return np.where(here == there, near[here], np.maximum(table.far[here], table.far[there]))


def _least_after(table: Table, layers: Layers, region: Region, kinds: Ints, found: Stages) -> Floats:
    """Return the least seconds after the pipeline, [N], in a plan of the region. Of the layers that a type in use
    holds some are in a stage at least, which is reduced with it."""
    held = found.parameters
    rest = (held * table.updates(region.most)[kinds]).max(axis=1)
    used = np.unique(kinds[0])  # those of all rows: orders of one composition
    norm = table.norm_seconds(kinds.shape[1] * region.fewest)[0, used].max()
    rest = rest + norm + table.tied_between(kinds)
    if region.fewest < 2:
        return np.asarray(rest)
    whole = layers.total * (layers.dense + layers.expert) + layers.first_parameters + layers.last_parameters
    once = byte_seconds(table, whole, region.fewest, region.link)[kinds]
    reduce, gather = tails(table, found, once * held)
    worst = reduce.max(axis=1, keepdims=True), gather.max(axis=1, keepdims=True)
    least = worst[0] + worst[1]
    for other in sorted(set(region.used) - set(used.tolist())):
        once = byte_seconds(table, whole, region.fewest, region.link, beside=(other,))[kinds]
        late = tails(table, found, once * held)
        shared = np.maximum(late[0], worst[0]) + np.maximum(late[1], worst[1])
        least = np.maximum(least, shared.min(axis=1, keepdims=True))
    return np.asarray(rest + least[:, 0])
