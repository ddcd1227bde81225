"""Plans whose replicas are all alike, each with the same part of every type: the simplest that mix types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.cost.strategy import Floats
from shardwright.search.mixed.field import Field
from shardwright.search.mixed.plans.draft import Draft
from shardwright.search.mixed.proof.bounds import Columns, columns, micro_batches
from shardwright.search.mixed.space.region import Region

BEST = 3  # numbers of replicas that are made into plans
STEPS = 20  # of the bisection for how long one takes


def equal_replicas(each: Field, region: Region, ceiling: float, offer: Callable[[Draft], float]) -> None:
    """Offer plans of a region with equal replicas on all units of a setting: of the numbers of replicas that share out
    all types evenly those that take least by their bound, and less than `ceiling` seconds."""
    units = each.table.units
    even = int(np.gcd.reduce(units[units > 0]))
    numbers = [number for number in range(region.fewest, min(region.most, even, each.total) + 1) if even % number == 0]
    rows = np.array([units // number for number in numbers], dtype=np.int64).reshape(len(numbers), len(units))
    rows = rows[(rows.sum(axis=1) > 1) & (rows.sum(axis=1) <= each.depth)]
    if not len(rows):
        return
    table = each.capacity(region, ceiling, few=False)
    found = columns(each.table, each.layers, table, rows, region, few=False)
    copies = units.max() // found.counts.max(axis=1, initial=1)
    seconds = _shortest(found, -(-each.total // copies), each.quick, ceiling)
    for row in np.argsort(seconds, kind="stable")[:BEST]:
        if seconds[row] < ceiling:
            number = int(copies[row])
            chosen = [(tuple(found.counts[row].tolist()), number, max(each.total // number, 1))]
            draft = each.workshop.draft(chosen, each.total)
            if draft is not None:
                offer(draft)


def _shortest(found: Columns, wanted: Floats, low: float, high: float) -> Floats:
    """Return the seconds in which each column finishes `wanted` [N] micro-batches, infinite beyond `high`."""
    least, most = np.full(len(wanted), low), np.full(len(wanted), high)
    possible = micro_batches(found, most) >= wanted
    for _ in range(STEPS):
        middle = 0.5 * (least + most)
        enough = micro_batches(found, middle) >= wanted
        least, most = np.where(enough, least, middle), np.where(enough, middle, most)
    return np.where(possible, most, np.inf)
