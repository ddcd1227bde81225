"""Which compositions can be in a solution of the program: by its prices, without their bounds, and by what fits.

At prices pi a composition c is in a solution of at least M micro-batches only if it finishes c pi - slack of them,
where slack is by how much the value of the units at these prices exceeds M. That needs a bottleneck short enough, by
the inequalities of `bounds`, and one look at the table of capacities says whether the model fits within it.

Bounds count layers as parts of the least one, and any number of them at the ends: of unlike layers, or with ends
pinned, they let compositions pass that no plan has. Solutions of these are no plans, and hide those that are.
"""

from __future__ import annotations

from itertools import permutations
from math import comb, factorial

import numpy as np

from shardwright.arrays import Floats, Ints, picked
from shardwright.rounding import weighed
from shardwright.search.mixed.bounds.capacity import Capacity
from shardwright.search.mixed.bounds.compositions import (
    Compositions,
    after,
    alone,
    columns,
    least_rounds,
    least_tied,
)
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.bounds.travel import least_tail, travel
from shardwright.search.mixed.bounds.work import forward_share, held_of, layers_held, least_work, moving_seconds
from shardwright.search.mixed.drafts.split_times import stages
from shardwright.search.mixed.drafts.splits import every_split
from shardwright.search.mixed.tables.columns import Layers, Table
from shardwright.search.mixed.tables.compositions import any_order, every_order, few_orders
from shardwright.search.mixed.tables.region import Region
from shardwright.search.space.axes import Space

SMALL = 1e-9
FEW = 600  # splits in all orders of the types of a composition, which are all looked at


def needed(counts: Ints, prices: Floats, slack: float) -> Ints:
    """Return how many micro-batches each composition must finish to be in a solution, [N]. `prices` are of the types
    and, last, of a replica."""
    least = np.ceil(weighed(counts, prices[:-1]) + prices[-1] - slack - SMALL)
    return np.asarray(np.maximum(least, 1.0), dtype=np.int64)


def possible(
    table: Table,
    layers: Layers,
    capacity: Capacity,
    counts: Ints,
    region: Region,
    micro_batches: Ints,
    seconds: float | Floats,
) -> Ints:
    """(P5) Return the compositions (rows of `counts` [N, G], of two stages or more) that may finish `micro_batches` [N]
    within `seconds` (or [N]). Where these are no more than stages, `capacity` must hold for a single one in flight."""
    stages = counts.sum(axis=1).astype(np.float64)
    beside = 1.0 - forward_share(table, layers, counts)
    left = seconds - after(table, layers, counts, region)
    needs = travel(table, layers, region)
    tied = least_tied(table, counts)
    fastest = np.where(counts > 0, layers.seconds, np.inf).min(axis=1)
    work = layers.total * fastest + weighed(counts, 2.0 * table.each) + 2.0 * moving_seconds(table, counts)
    rows = np.arange(len(counts))
    for last in (False, False, True):
        longest = longest_bottleneck(left[rows], work[rows], micro_batches[rows], stages[rows], beside[rows])
        rows, longest = rows[longest >= capacity.seconds[0]], longest[longest >= capacity.seconds[0]]
        if last:
            break
        place = np.searchsorted(capacity.seconds, longest * (1.0 - SMALL))
        place = np.minimum(place, len(capacity.seconds) - 1)
        kept = layers_held(capacity, picked(counts, rows), place) >= layers.total - 1e-6
        rows = rows[kept]
        arranged = any_order(picked(counts, rows))
        work[rows] = least_work(table, layers, capacity, arranged, place[kept])
        held = held_of(capacity, arranged, place[kept])
        tail = least_tail(needs, arranged, held, capacity.seconds[place[kept]], layers)
        left[rows] = np.minimum(left[rows], np.broadcast_to(seconds, left.shape)[rows] - tied[rows] - tail)
    if len(rows) and few_orders(picked(counts, rows)):
        arranged = every_order(picked(counts, rows))
        place = np.minimum(np.searchsorted(capacity.seconds, longest * (1.0 - SMALL)), len(capacity.seconds) - 1)
        held = held_of(capacity, arranged, np.tile(place, len(arranged.counts) // len(rows))).sum(axis=1)
        rows = rows[held.reshape(-1, len(rows)).max(axis=0) >= layers.total - 1e-6]
    return rows


def longest_bottleneck(left: Floats, work: Floats, micro_batches: Ints, stages: Floats, beside: Floats) -> Floats:
    """Return the longest bottleneck with which so many micro-batches pass within `left` seconds, [N], where one of them
    takes `work` seconds at least: negative where there is none. `beside` is the least part of a stage's time that its
    backward pass is."""
    m = micro_batches.astype(np.float64)
    beyond = m - 1.0 - stages
    many = (left - work) / np.maximum(m - 1.0 - (stages - 1.0) / 2.0, SMALL)
    many = np.minimum(many, np.where(beyond > 0.0, (left - 2.0 * work) / np.maximum(beyond, SMALL), np.inf))
    fits = (work * (1.0 + (m - 1.0) / stages) <= left * (1.0 + SMALL)) & (2.0 * work <= left * (1.0 + SMALL))
    few = np.where(m > 1.0, (left - work) / np.maximum(beside * (m - 1.0), SMALL), np.inf)
    longest = np.where(beyond >= 0.0, np.where(fits, many, -1.0), np.where(work <= left * (1.0 + SMALL), few, -1.0))
    longest = np.where((m > stages) | (work * least_rounds(m, stages) <= left * (1.0 + SMALL)), longest, -1.0)
    return np.minimum(longest, left / m)


def that_fit(instance: Instance, region: Region, compositions: Compositions) -> Compositions:
    """Return the rows without those whose composition has no such split in a region, with the fewest micro-batches for
    which the row holds. Where layers are alike and ends are free, the bounds of rows say it already."""
    if instance.layers.whole and not instance.ends.first and not instance.ends.last:
        return compositions
    rows = [
        row
        for row, (counts, fewest) in enumerate(
            zip(compositions.counts.tolist(), compositions.fewest.tolist(), strict=True)
        )
        if _fits(instance, region, tuple(counts), fewest)
    ]
    return compositions if len(rows) == len(compositions) else compositions.take(np.array(rows, dtype=np.int64))


def _fits(instance: Instance, region: Region, counts: tuple[int, ...], micro_batches: int) -> bool:
    """Return whether a composition may have such a split, which is remembered."""
    key = (counts, region.most, micro_batches)
    if key not in instance.fitting:
        instance.fitting[key] = _some_split_fits(instance, region, counts, micro_batches)
    return instance.fitting[key]


def _some_split_fits(instance: Instance, region: Region, counts: tuple[int, ...], micro_batches: int) -> bool:
    present, depth, total = [kind for kind, count in enumerate(counts) if count], sum(counts), instance.table.layers
    if comb(total - 1, depth - 1) * factorial(len(present)) > FEW:
        return True
    starts = instance.ends.kept(every_split(total, depth))
    if not len(starts):
        return False
    orders = [np.repeat(order, np.array(counts)[list(order)]) for order in permutations(present)]
    splits = stages(
        instance.table,
        np.repeat(orders, len(starts), axis=0),
        np.tile(starts, (len(orders), 1)),
        micro_batches=micro_batches,
        copies=region.most,
        modes=region.modes,
    )
    return bool(splits.fits.any())


def with_single_stages(instance: Instance, region: Region, counts: Ints, space: Space, longest: float) -> Compositions:
    """Return the pipelines of so many stages on each type [N, K] and those of one stage that fit, of the depths that
    are allowed."""
    parts = [alone(instance.table, instance.layers, region)]
    if len(counts):
        capacity = instance.capacity(region, longest, few=False)
        parts.append(columns(instance.table, instance.layers, capacity, counts, region, few=False))
    fitting = that_fit(instance, region, Compositions.concatenated(parts))
    return fitting.take(np.flatnonzero(np.isin(fitting.stages, space.allowed("pp", fitting.stages.tolist()))))
