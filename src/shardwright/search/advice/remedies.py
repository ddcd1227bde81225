"""What would make a plan fit that does not: single changes, each tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from shardwright.arrays import Ints
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.iteration.footprint import fewest_recomputed_layers, fixed_bytes, footprint
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM, UNSHARDED, ZERO1, Strategies
from shardwright.plans.remedies import BlockRecomputation, Change, Remedy, SmallerMicroBatch


def remedies(context: Context, row: Strategies, starts: Ints) -> Iterator[Remedy]:
    """Yield single changes of a row under which every stage fits; none if it fits as it is."""
    if _fits(context, row, starts):
        return
    single = np.ones(1, dtype=np.int64)
    if row.recompute[0] == NONE and _fits(context, replace(row, recompute=SELECTIVE * single), starts):
        yield Change.SELECTIVE_RECOMPUTATION
    if row.recompute[0] != UNIFORM:
        blocks = replace(row, recompute=BLOCK * single)
        shards = layer_rows(context, blocks)
        layers, able = fewest_recomputed_layers(
            context, blocks, shards, starts, fixed_bytes(context, blocks, shards, starts)
        )
        if able[0]:
            yield BlockRecomputation(int(layers[0]))
    ranks = int(row.dp[0] * row.cp[0])
    if ranks > 1 and row.sharding[0] == UNSHARDED and _fits(context, replace(row, sharding=ZERO1 * single), starts):
        yield Change.ZERO1
    if row.offload[0] < 1.0 and not context.job.options.precision_aware:
        whole = replace(row, sharding=np.maximum(row.sharding, ZERO1), offload=np.ones(1))
        if _fits(context, whole, starts):
            yield Change.OFFLOADED_OPTIMIZER
    if row.micro_batch[0] % 2 == 0 and _fits(context, replace(row, micro_batch=row.micro_batch // 2), starts):
        yield SmallerMicroBatch(int(row.micro_batch[0]) // 2)


def _fits(context: Context, row: Strategies, starts: Ints) -> bool:
    if not context.timed(row).all():
        return False  # of layers that were not measured so nothing is known
    peak = footprint(context, row, layer_rows(context, row), starts).total
    return bool((peak <= context.memory_limit_bytes).all())
