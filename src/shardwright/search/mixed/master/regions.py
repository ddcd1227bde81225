"""The least time of a region, from the program over its compositions, and the parts it is split into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shardwright.arrays import Ints, picked
from shardwright.records import record
from shardwright.rounding import coarse, weighed
from shardwright.search.mixed.bounds.compositions import alone, micro_batches
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.master.answer import Infeasible
from shardwright.search.mixed.master.column_pool import NOTHING, ColumnPool, RuledOut
from shardwright.search.mixed.master.program import CLOSE
from shardwright.search.mixed.subproblem.eligible import needed, possible
from shardwright.search.mixed.tables.region import Region, by_links, by_types, sites_of, usable

PRECISION = 1e-3  # of the bound of a region
MOST_STEPS = 40  # in the search for it
NARROW, FEW = 1.25, 16  # numbers of replicas, at most over at least, not split any more; a few are, to single ones


@record(kw_only=False)
class Bounded:
    """A region's lower bound, with the columns that prove it."""

    seconds: float
    columns: ColumnPool


def bounded(
    instance: Instance,
    region: Region,
    counts: Ints,
    *,
    known: float,
    cutoff: float,
    longest: float,
    ruled_out: RuledOut = NOTHING,
    closely: bool = False,
) -> Bounded | Infeasible:
    """(P8) Return the bound of a region with its columns, unless it holds nothing below `cutoff`. Columns are of use
    for times up to `longest`. `known` is a bound already, and what a region of which it is a part has `ruled_out`
    holds. `closely` looks at all splits of compositions."""
    least = max(known, instance.quickest(region))
    if least >= cutoff:
        return Infeasible()
    counts = picked(counts, usable(instance.table, counts, region))
    if too_slow(instance, region, counts, cutoff):
        return Infeasible()
    columns = ColumnPool(instance, region, counts, longest, ruled_out=ruled_out)
    if columns.excludes(cutoff) if closely else not columns.reaches_all(cutoff):
        return Infeasible()
    high = cutoff
    while True:
        seconds, high = shortest(columns.limit, instance.total, least, high)
        if seconds <= least or not columns.extend(seconds, columns.relaxed(seconds).prices):
            return Bounded(seconds, columns)


def too_slow(instance: Instance, region: Region, counts: Ints, seconds: float) -> bool:
    """Return whether prices in proportion to the speed of the types prove that no plan of a region takes `seconds`."""
    speeds = instance.speeds / np.maximum(instance.table.units, 1)
    worth = (instance.speeds[list(region.used)] if region.used else instance.speeds).sum()
    prices = np.append(speeds, 0.0) * ((instance.total - 2.0 * CLOSE) / worth)
    single = alone(instance.table, instance.layers, region)
    if (micro_batches(single, seconds) > weighed(single.counts, prices[:-1])).any():
        return False
    least = needed(counts, prices, 0.0)
    few = least <= counts.sum(axis=1)
    for some, rows in ((False, np.flatnonzero(~few)), (True, np.flatnonzero(few))):
        rows = rows[least[rows] <= instance.total]
        if len(rows):
            capacity = instance.capacity(region, seconds, few=some)
            if len(
                possible(instance.table, instance.layers, capacity, picked(counts, rows), region, least[rows], seconds)
            ):
                return False
    return True


def shortest(reached: Callable[[float], float], total: int, low: float, high: float) -> tuple[float, float]:
    """Return seconds that do not suffice to reach `total` micro-batches (or `low`), and little longer ones that do (or
    `high`). What is reached grows with the seconds, almost in proportion."""
    at_low, at_high = 0.0, 0.0
    for step in range(MOST_STEPS):
        if high - low <= PRECISION * high:
            break
        middle = min(0.5 * (low + high), 2.0 * low) if not at_high else 0.5 * (low + high)
        if at_low and at_high and step < MOST_STEPS // 2:
            guess = low + (high - low) * (total - at_low) / max(at_high - at_low, CLOSE)
            # To one side of the guess, then to the other: two steps close in on a good one.
            guess *= 1.0 + (0.4 if guess - low < 0.5 * (high - low) else -0.4) * PRECISION
            middle = float(np.clip(guess, low + 0.02 * (high - low), high - 0.02 * (high - low)))
        middle = coarse(middle)
        value = reached(middle)
        if value < total - CLOSE:
            low, at_low = middle, value
        else:
            high, at_high = middle, value
    return low, high


def parts(instance: Instance, region: Region, incumbent: float) -> list[Region]:
    """Return the parts of a region: by the types in use, by the numbers of replicas, and by links. Plans that take
    `incumbent` seconds or more do not matter."""
    if region.fewest == 1 and region.most > 1:
        return [replace(region, most=1), replace(region, fewest=2)]
    several = len(sites_of(instance.table, tuple(np.flatnonzero(instance.table.units > 0).tolist()))) > 1
    if not region.used and (region.most > 1 or several) and (instance.table.units > 0).sum() > 1:
        return by_types(instance.table, region, _fewest_gpus(instance, incumbent))
    return _narrowed(region) if is_wide(region) else by_links(instance.table, region)


def is_wide(region: Region) -> bool:
    """Return whether a region is split by the numbers of replicas."""
    return region.most > (NARROW * region.fewest if region.most > FEW else region.fewest)


def _fewest_gpus(instance: Instance, incumbent: float) -> int:
    """Return how many GPUs a plan has at least that takes no longer than `incumbent`."""
    layers, degrees = instance.layers, np.array(instance.setting.tp)
    quickest = np.where(
        instance.table.units > 0, degrees * np.minimum(layers.alone_seconds, layers.seconds), np.inf
    ).min()
    return max(int(np.ceil(instance.total * layers.total * quickest / incumbent * (1.0 - CLOSE))), 1)


def _narrowed(region: Region) -> list[Region]:
    middle = int(np.sqrt(region.fewest * region.most))
    return [replace(region, most=middle), replace(region, fewest=middle + 1)]
