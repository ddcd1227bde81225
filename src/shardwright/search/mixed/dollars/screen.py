"""Which numbers of machines cannot finish an iteration in time, by the program over compositions.

Let V(y, T) be the most micro-batches that the relaxed program finishes within T on y machines. If V(y, T) < M, no plan
on them takes T or less. Prices of the program at (y, T) bound V(y', T) for all other y', too, and a bound at T is one
for all that is shorter: one program rules out many numbers of machines, each with a time of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, distinct
from shardwright.cost.stage.terms import WHOLE
from shardwright.rounding import coarse, weighed
from shardwright.search.mixed.bounds.compositions import alone
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.master.column_pool import ColumnPool
from shardwright.search.mixed.master.program import CLOSE, master_problem
from shardwright.search.mixed.master.regions import shortest
from shardwright.search.mixed.master.relaxation import Relaxed
from shardwright.search.mixed.subproblem.pricing import possible
from shardwright.search.mixed.tables.region import Region, usable
from shardwright.search.space.axes import Space


@dataclass(frozen=True, slots=True)
class UnitGroup:
    """Numbers of units of like size and of the same types: the rows of them, and the programs of their regions."""

    rows: Ints
    pools: tuple[ColumnPool, ...]


def groups(instance: Instance, space: Space, units: Ints, longest: Floats, share: Floats) -> Iterator[UnitGroup]:
    """Yield groups that together hold every row of `units` [K, G] that may finish an iteration of a setting within
    `longest` [K] seconds. `share` [G] is what a second of a unit is of the money for one micro-batch."""
    whole = instance.on_units(units.max(axis=0))
    if not any(_affordable(whole, space, root, share, float(longest.max())) for root in roots(whole, space)):
        return
    keys = [(tuple(np.flatnonzero(row).tolist()), int(row.sum()).bit_length()) for row in units]
    for key in sorted(set(keys)):
        rows = np.array([place for place, other in enumerate(keys) if other == key])
        if not key[0]:
            continue
        own = instance.on_units(units[rows].max(axis=0))
        end = float(longest[rows].max())
        regions = [replace(root, used=key[0]) for root in roots(own, space)]
        found = tuple(
            _pool(own, space, region, end) for region in regions if _affordable(own, space, region, share, end)
        )
        if found:
            yield UnitGroup(rows, found)


def screened(group: UnitGroup, units: Ints, longest: Floats) -> Bools:
    """(P10) Return which rows of a group may finish an iteration in time. `units` [K, G] and `longest` [K] are those of
    all rows."""
    found = [_screened(each, units[group.rows], longest[group.rows]) for each in group.pools]
    return np.asarray(np.any(found, axis=0))


def least_seconds(pools: tuple[ColumnPool, ...], units: Ints, low: float, high: float) -> float:
    """Return the seconds from `low` to `high` that no plan on `units` [G] beats, infinite where that is more. The
    pools may be of more units."""
    return min(_least_seconds(pool, units, low, high) for pool in pools)


def roots(instance: Instance, space: Space) -> list[Region]:
    """Return the regions to start from, with no more replicas than fit into memory."""
    if not instance.table.units.any():
        return []
    found = [replace(root, most=most_replicas(instance, root.most)) for root in instance.roots(space)]
    return [root for root in found if root.fewest <= root.most]


def _affordable(instance: Instance, space: Space, region: Region, share: Floats, longest: float) -> bool:
    """Return whether there is money for some composition of a region, for as many micro-batches as it has the time for.
    Money for a plan is money for one of its compositions."""
    single = alone(instance.table, instance.layers, region)
    if (single.bottleneck[:, 0] * weighed(single.counts, share) <= 1.0).any():
        return True
    counts = _usable(instance, space, region)
    with np.errstate(divide="ignore"):
        pace = np.minimum(1.0 / weighed(counts, share), longest)
    return bool(len(fast_enough(instance, region, counts, pace, longest)))


def fast_enough(instance: Instance, region: Region, counts: Ints, pace: Floats, longest: float) -> Ints:
    """Return the compositions (rows of `counts` [N, G], of two stages or more) that may finish some micro-batches in
    `pace` [N] seconds each and `longest` together. By the bounds, the more there are the fewer seconds each takes,
    among numbers up to that of the stages and among those beyond: so the most that fit at the pace tell, or one more
    within `longest`."""
    stages, table, layers = counts.sum(axis=1), instance.table, instance.layers
    most = np.minimum(np.floor(longest / pace + CLOSE), instance.total).astype(np.int64)
    more = most + 1
    asked = [  # micro-batches, seconds for all of them, where that is asked, and whether they are no more than stages
        (np.minimum(most, stages), None, most > 0, True),
        (more, longest, more <= np.minimum(stages, instance.total), True),
        (most, None, most > stages, False),
        (np.maximum(more, stages + 1), longest, np.maximum(more, stages + 1) <= instance.total, False),
    ]
    found = []
    for sizes, seconds, where, few in asked:
        rows = np.flatnonzero(where)
        if len(rows):
            size, capacity = sizes[rows], instance.capacity(region, np.inf, few=few)
            within = (size * pace[rows] if seconds is None else np.full(len(rows), seconds)) * (1.0 + CLOSE)
            found.append(rows[possible(table, layers, capacity, counts[rows], region, size, within)])
    return distinct(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)


def _usable(instance: Instance, space: Space, region: Region) -> Ints:
    counts = instance.compositions(space)
    return counts[usable(instance.table, counts, region)]


def _pool(instance: Instance, space: Space, region: Region, longest: float) -> ColumnPool:
    return ColumnPool(instance, region, _usable(instance, space, region), longest)


def most_replicas(instance: Instance, most: int) -> int:
    """Return how many replicas fit into the memory of all units, at most: each holds all parameters, and all share out
    the state of the optimizer."""
    table, layers = instance.table, instance.layers
    there = table.units > 0
    parameters = layers.total * (layers.dense + layers.expert)[there].min()
    room = float((np.maximum(table.rooms(staged=False) - table.live[:, WHOLE], 0.0) * table.units).sum())
    beside = max(room - parameters * float(table.shared_bytes[there].min()), 0.0)
    each_keeps = parameters * float(table.state_bytes[there].min())
    return most if most * each_keeps <= beside else int(beside / each_keeps + CLOSE)


def _screened(pool: ColumnPool, units: Ints, longest: Floats) -> Bools:
    may, left = np.zeros(len(units), dtype=bool), np.ones(len(units), dtype=bool)
    while left.any():
        row = int(coarse(np.where(left, longest, -1.0)).argmax())
        left[row] = False
        _set_units(pool, units[row])
        relaxed = pool.generated(float(longest[row]))
        may[row] = pool.suffices(relaxed)
        if not may[row]:
            left &= (longest > longest[row]) | (_value(pool, units, relaxed) >= pool.total - CLOSE)
    return may


def _value(pool: ColumnPool, units: Ints, relaxed: Relaxed) -> Floats:
    """Return the most micro-batches on each row of units, [K], at the prices of the optimum on those of the pool."""
    return np.asarray(relaxed.value + weighed(units - pool.program.limits.units, relaxed.prices[:-1]))


def _least_seconds(pool: ColumnPool, units: Ints, low: float, high: float) -> float:
    _set_units(pool, units)
    if not pool.reaches_all(high):
        return np.inf
    while True:
        seconds, high = shortest(pool.limit, pool.total, low, high)
        if seconds <= low or not pool.extend(seconds, pool.relaxed(seconds).prices):
            return seconds


def _set_units(pool: ColumnPool, units: Ints) -> None:
    pool.program = master_problem(pool.listed.counts, replace(pool.program.limits, units=units))
