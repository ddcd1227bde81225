"""Whether anything fits in memory, whatever it takes: the leanest layouts first, up to the first strategy that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shardwright.cost.context import Context, shard_index
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space
from shardwright.search.space.expand import arrangements, axes, layer_variants
from shardwright.search.space.layouts import layouts, splits
from shardwright.search.uniform.completion import completed
from shardwright.search.uniform.layout_bounds import distinct_shards, memory_floor

BATCH = 16  # layouts that are expanded in one go; chosen


def feasible(context: Context, space: Space, filters: Filters) -> Callable[[float], bool]:
    """Return the test whether any strategy of the space fits in GPUs of so many bytes of memory."""
    rows = layouts(context, space)
    choices, how = splits(context, space, rows.pp * rows.vpp), axes(space, filters.axes)
    for _, mask in filters.layout_masks(context, rows):
        rows = rows.take(~mask)
    if not len(rows):
        return lambda _: False
    index = shard_index(context, layer_variants(context, how, distinct_shards(rows))[0])
    floor = memory_floor(context, how, rows, index)
    order = np.argsort(floor, kind="stable")

    def fits(memory_bytes: float) -> bool:
        where = replace(context, pool=replace(context.pool, memory_bytes=memory_bytes))
        possible = order[: int((floor <= where.memory_limit_bytes).sum())]
        for start in range(0, len(possible), BATCH):
            lean = rows.take(possible[start : start + BATCH])
            arranged = arrangements(where, how, lean, choices, lambda variants, _: np.ones(len(variants), dtype=bool))
            for full, _ in completed(where, how, index, arranged):
                for _, mask in filters.masks(where, full.strategies):
                    full = full.take(~mask)
                if len(full.layout):
                    return True
        return False

    return fits
