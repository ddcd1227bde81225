"""The exact verdict on any strategies: seconds of an iteration, peak memory, and whether they fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.context import Context, ShardIndex, sharded
from shardwright.cost.footprint import footprint
from shardwright.cost.iteration import exact_seconds, iteration
from shardwright.cost.stages import boundaries
from shardwright.cost.strategy import Array, Bools, Floats, Ints, Strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Columns [N]: seconds of an iteration, peak bytes of the fullest GPU, and whether that is within its memory."""

    rows: Strategies
    seconds: Floats
    peak_bytes: Floats
    fits: Bools


def evaluate(context: Context, rows: Strategies, *, index: ShardIndex | None = None) -> Verdict:
    """Return the verdict on `rows`, of any shapes. `index` is a layer table that covers them, if one is at hand."""
    shards = index.of(rows) if index is not None else sharded(context, rows)
    seconds, peak = np.zeros(len(rows)), np.zeros(len(rows))
    for group in groups(rows.pp * (1 << 20) + rows.vpp):
        part = rows.take(group)
        stages = int(part.pp[0] * part.vpp[0])
        starts = boundaries(context.layer_count, stages, part.first_layers, part.last_layers)
        of_part = type(shards)(table=shards.table, row=shards.row[group])
        seconds[group] = exact_seconds(context, part, iteration(context, part, of_part, starts))
        peak[group] = footprint(context, part, of_part, starts).total.max(axis=1)
    return Verdict(rows=rows, seconds=seconds, peak_bytes=peak, fits=peak <= context.pool.memory_bytes)


def groups(key: Array) -> list[Ints]:
    """Return the indices of equal keys, in the order of the keys."""
    if not len(key):
        return []
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    return list(np.split(order, cuts))
