"""Bounds over numbers of machines, by the program over compositions with a row for money: least dollars, least seconds.

A plan that takes T and costs G has x_c replicas of compositions c with T sum(x_c q c) <= G, where q are the dollars for
a second of a unit. By the bounds, the micro-batches m_c(T) of a replica grow with T at least in proportion, so in a
longer time T' as little as x_c T / T' replicas do as much for as much money. One program, at the longest time, bounds
the dollars of plans of all times. It counts parts of replicas and of machines.

Let V(y, T) be the most micro-batches that the relaxed program finishes within T on y machines. If V(y, T) < M, no plan
on them takes T or less. Prices of the program at (y, T) bound V(y', T) for all other y', too, and a bound at T is one
for all that is shorter: one program rules out many numbers of machines, each with a time of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, distinct
from shardwright.cost.stage.terms import WHOLE
from shardwright.records import record
from shardwright.rounding import coarse, weighed
from shardwright.search.mixed.bounds.compositions import Compositions, alone, columns
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.branch_and_bound.run import spent_of
from shardwright.search.mixed.branch_and_bound.tree import Branched, Pruned, Step, TreeNode, Undecided, least_bound
from shardwright.search.mixed.master.column_pool import ColumnPool
from shardwright.search.mixed.master.program import CLOSE, master_problem
from shardwright.search.mixed.master.regions import parts, shortest
from shardwright.search.mixed.master.relaxation import Relaxed, relaxation
from shardwright.search.mixed.subproblem.eligible import possible
from shardwright.search.mixed.tables.region import Region, usable
from shardwright.search.space.axes import Space

MORE = 250  # compositions that are listed at a time
STEP = 2e-3  # of the bound of a region, less than which does not count
MOST_STEPS = 60


@record(kw_only=False)
class Start:
    """A region of an instance with the dollars for a second of a unit, [G]."""

    each: Instance
    region: Region
    per_unit: Floats


def least_dollars(starts: Sequence[Start], space: Space, cutoff: float, longest: float, most_regions: int) -> float:
    """(P9) Return dollars, `cutoff` at most, that no plan of the regions costs less than and takes `longest` seconds or
    less."""

    def processed(node: TreeNode[Start]) -> Step[Start]:
        start, dollars = node.part, _least_of(node, space, cutoff, longest)
        if dollars >= cutoff:
            return Pruned()
        split = parts(start.each, start.region, longest)
        return Branched([(dollars, replace(start, region=part)) for part in split]) if split else Undecided(dollars)

    return least_bound(
        [(_quick(start), start) for start in starts],
        processed,
        cutoff=lambda: cutoff,
        spent=lambda processed: spent_of(processed, most_regions),
    )


def _quick(start: Start) -> float:
    instance = start.each
    there = instance.table.units > 0
    speeds = instance.speeds[there] / instance.table.units[there]
    return coarse(instance.total * instance.layers.total * float((start.per_unit[there] / speeds).min()))


def _least_of(node: TreeNode[Start], space: Space, cutoff: float, seconds: float) -> float:
    """Return the dollars that no plan of a region costs less than."""
    each, region, per_unit = node.part.each, node.part.region, node.part.per_unit
    rest = each.compositions(space)
    rest = rest[usable(each.table, rest, region)]
    listed = _listed(each, region, alone(each.table, each.layers, region), rest[each.samples(rest)])
    rest = rest[~each.samples(rest)]
    units = np.append(each.table.units, region.most).astype(np.float64)
    dollars = node.bound
    for _ in range(MOST_STEPS):
        rows = np.column_stack([listed.counts, np.ones(len(listed.counts)), weighed(listed.counts, per_unit)])
        program = relaxation(rows, np.append(units, dollars / seconds))
        relaxed = program.optimum(steady_micro_batches(listed, seconds, each.total))
        reached, prices = relaxed.value, relaxed.prices
        if reached >= each.total - CLOSE:
            break
        cost = weighed(rest, prices[:-2]) + prices[-2] + weighed(rest, per_unit) * prices[-1]
        with np.errstate(divide="ignore"):
            faster = fast_enough(each, region, rest, np.minimum(seconds / cost, seconds), seconds)
        if len(faster):
            faster = faster[np.argsort(coarse(cost[faster]), kind="stable")[:MORE]]
            listed = _listed(each, region, listed, rest[faster])
            rest = np.delete(rest, faster, axis=0)
            continue
        # The tangent at the money there is bounds what more of it can do.
        missing = (each.total - reached) * seconds
        more = dollars + missing / prices[-1] if prices[-1] * (cutoff - dollars) > missing else cutoff
        if more >= cutoff or more < dollars * (1.0 + STEP):
            return more
        dollars = coarse(more)
    return dollars


def _listed(instance: Instance, region: Region, compositions: Compositions, counts: Ints) -> Compositions:
    """Return columns with those of more compositions: with as many micro-batches as stages or more, and with fewer."""
    table, layers = instance.table, instance.layers
    more = [
        columns(table, layers, instance.capacity(region, np.inf, few=few), counts, region, few=few, ordered=False)
        for few in (False, True)
        if len(counts)
    ]
    return Compositions.concatenated([compositions, *more])


def steady_micro_batches(compositions: Compositions, seconds: float, total: int) -> Floats:
    """Return `seconds` times the most micro-batches a second that a replica of each composition does in this time or
    less, [N]: as many at a time as it can finish, and no more than `total`."""
    tau, work, later, t = compositions.bottleneck, compositions.work, compositions.after, seconds - compositions.after
    stages, most = (
        compositions.stages[:, None].astype(np.float64),
        np.minimum(compositions.most, total)[:, None].astype(np.float64),
    )
    beside = (1.0 - compositions.share)[:, None] * tau
    with np.errstate(invalid="ignore"):
        many = np.minimum(np.minimum(1.0 + (t - compositions.first) / tau, t / tau), 1.0 + stages * (t / work - 1.0))
        many = np.floor(np.minimum(many, most) + CLOSE)
        end = np.maximum(
            compositions.first + (many - 1.0) * tau, np.maximum(many * tau, work * (1.0 + (many - 1.0) / stages))
        )
        few = np.floor(np.minimum(np.minimum(1.0 + (t - work) / beside, t / tau), np.minimum(stages, most)) + CLOSE)
        few_end = np.maximum(work + (few - 1.0) * beside, few * tau)
        rates = [
            np.where((many > stages) | ((stages == 1.0) & (many > 0.0)), many / (later + end), 0.0),
            np.where(few > 0.0, few / (later + few_end), 0.0),
        ]
    return np.asarray(seconds * np.nan_to_num(np.maximum(*rates)).max(axis=1))


@record(kw_only=False)
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
        there = instance.on_units(units[rows].max(axis=0))
        end = float(longest[rows].max())
        regions = [replace(root, used=key[0]) for root in roots(there, space)]
        pools = tuple(
            _pool(there, space, region, end) for region in regions if _affordable(there, space, region, share, end)
        )
        if pools:
            yield UnitGroup(rows, pools)


def screened(group: UnitGroup, units: Ints, longest: Floats) -> Bools:
    """(P10) Return which rows of a group may finish an iteration in time. `units` [K, G] and `longest` [K] are those of
    all rows."""
    found = [_screened(pool, units[group.rows], longest[group.rows]) for pool in group.pools]
    return np.asarray(np.any(found, axis=0))


def least_seconds(pools: tuple[ColumnPool, ...], units: Ints, low: float, high: float) -> float:
    """Return the seconds from `low` to `high` that no plan on `units` [G] beats, infinite where that is more. The
    pools may be of more units."""
    return min(_least_seconds(pool, units, low, high) for pool in pools)


def roots(instance: Instance, space: Space) -> list[Region]:
    """Return the regions to start from, with no more replicas than fit into memory."""
    if not instance.table.units.any():
        return []
    regions = [replace(root, most=most_replicas(instance, root.most)) for root in instance.roots(space)]
    return [root for root in regions if root.fewest <= root.most]


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
    parts = []
    for sizes, seconds, where, few in asked:
        rows = np.flatnonzero(where)
        if len(rows):
            size, capacity = sizes[rows], instance.capacity(region, np.inf, few=few)
            within = (size * pace[rows] if seconds is None else np.full(len(rows), seconds)) * (1.0 + CLOSE)
            parts.append(rows[possible(table, layers, capacity, counts[rows], region, size, within)])
    return distinct(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)


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
