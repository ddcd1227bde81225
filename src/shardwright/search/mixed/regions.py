"""The least time of a region, from the program over its compositions, and the parts it is split into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shardwright.cost.strategy import Ints
from shardwright.search.mixed.bounds import longest_after
from shardwright.search.mixed.field import Field
from shardwright.search.mixed.listing import Listing
from shardwright.search.mixed.program import CLOSE
from shardwright.search.mixed.region import Region, by_types, usable

PRECISION = 1e-3  # of the bound of a region
MOST_STEPS = 40  # in the search for it
FINEST = 0.003  # gap below which regions are not split for what is left after the pipeline
WIDE, NARROW = 4.0, 1.25  # numbers of replicas, at most over at least, that are split at once, and not any more
COARSE = 0.05  # of the bound, of what is left after the pipeline, that is split before numbers of replicas
FIRST_STEP = 0.04  # of the bound, of what is left after the pipeline


def bounded(
    each: Field, region: Region, counts: Ints, *, known: float, ceiling: float, gap: float
) -> tuple[float, Listing] | None:
    """Return the bound of a region with its compositions, or None where it holds nothing below `ceiling` by more than
    the gap. `known` is a bound already."""
    goal = ceiling / (1.0 + gap)
    least = max(known, each.quickest(region))
    if least >= goal:
        return None
    listing = Listing(each, region, counts[usable(each.table, counts, region)], ceiling)
    if not listing.reaches_all(goal):
        return None
    high = goal
    while True:
        seconds, high = shortest(listing.limit, each.total, least, high)
        if seconds <= least or not listing.extend(seconds):
            return seconds, listing


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
        value = reached(middle)
        if value < total - CLOSE:
            low, at_low = middle, value
        else:
            high, at_high = middle, value
    return low, high


def parts(each: Field, region: Region, bound: float, own: Listing, *, ceiling: float, gap: float) -> list[Region]:
    """Return the parts of a region: of the numbers of replicas and of what is left after the pipeline, in turns."""
    # Whatever is before the end of the pipelines takes the bound less what its columns have after it.
    counted = np.where(own.found.stages == 1, own.found.after, longest_after(each.table, each.layers, region))
    top = min(region.most_after, ceiling - max(each.quick, bound - float(counted.max(initial=region.least_after))))
    width = top - region.least_after
    if region.fewest == 1 and region.most > 1:
        return [replace(region, most=1), replace(region, fewest=2)]
    if region.most > WIDE * region.fewest:
        return _narrowed(region)
    if not region.used and region.most > 1 and (each.table.units > 0).sum() > 1:
        return by_types(each.table, region)
    if region.most > NARROW * region.fewest and width < COARSE * bound:
        return _narrowed(region)
    if width > 0.3 * max(gap, FINEST) * bound and region.most > 1:
        step = max(FIRST_STEP * bound, 0.5 * region.least_after)
        middle_after = region.least_after + min(0.5 * width, step)
        return [
            replace(region, most_after=middle_after),
            replace(region, least_after=middle_after, most_after=top),
        ]
    return _narrowed(region) if region.most > NARROW * region.fewest else []


def _narrowed(region: Region) -> list[Region]:
    middle = int(np.sqrt(region.fewest * region.most))
    return [replace(region, most=middle), replace(region, fewest=middle + 1)]
