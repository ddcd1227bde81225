"""Plans whose replicas are all alike, with as much of every type as all can have: the simplest that mix types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.arrays import distinct_rows
from shardwright.search.mixed.bounds.compositions import columns, least_seconds
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.heuristics.attempts import Drafter
from shardwright.search.mixed.tables.region import Region

BEST = 3  # numbers of replicas that are made into plans


def equal_replicas(by: Drafter, region: Region, incumbent: float, offer: Callable[[Draft], float]) -> None:
    """Offer plans of a region with equal replicas on the units of a setting; what cannot be shared out stays idle:
    of all numbers of replicas those that take least by their bound, and less than `incumbent` seconds."""
    each, units = by.instance, by.instance.table.units
    numbers = np.arange(region.fewest, min(region.most, int(units.max()), each.total) + 1)
    rows = units // numbers[:, None]
    rows = rows[(rows.sum(axis=1) > 1) & (rows.sum(axis=1) <= each.depth)]
    rows = distinct_rows(rows)
    if not len(rows):
        return
    table = each.capacity(region, incumbent, few=False)
    found = columns(each.table, each.layers, table, rows, region, few=False)
    copies = np.where(found.counts > 0, units // np.maximum(found.counts, 1), each.total).min(axis=1)
    seconds = least_seconds(found, -(-each.total // copies), each.quick, incumbent)
    for row in np.argsort(seconds, kind="stable")[:BEST]:
        if seconds[row] < incumbent:
            number = int(copies[row])
            chosen = [(tuple(found.counts[row].tolist()), number, max(each.total // number, 1))]
            draft = by.workshop.draft(chosen, each.total)
            if draft is not None:
                offer(draft)
