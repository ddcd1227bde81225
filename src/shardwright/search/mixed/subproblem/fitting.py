"""Which compositions have a split that fits and has the ends that are asked for, told by all splits where they are few.

Bounds count layers as parts of the least one, and any number of them at the ends: of unlike layers, or with ends
pinned, they let compositions pass that no plan has. Solutions of these are no plans, and hide those that are.
"""

from __future__ import annotations

from itertools import permutations
from math import comb, factorial

import numpy as np

from shardwright.search.mixed.bounds.compositions import Compositions
from shardwright.search.mixed.bounds.instance import Instance
from shardwright.search.mixed.drafts.split_times import stages
from shardwright.search.mixed.drafts.splits import every_split
from shardwright.search.mixed.tables.region import Region

FEW = 600  # splits in all orders of the types of a composition, which are all looked at


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
