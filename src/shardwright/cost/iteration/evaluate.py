"""The exact verdict on any strategies: seconds of an iteration, peak memory, and whether they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, bits_of, packed, places_by_value
from shardwright.cost.context import Context, ShardIndex, shard_index
from shardwright.cost.iteration.batch import Iteration, bound_seconds, exact_seconds, iteration
from shardwright.cost.iteration.footprint import footprint
from shardwright.cost.pipeline.splits import boundaries
from shardwright.cost.strategies import Strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Columns [N]: seconds of an iteration, peak bytes of the fullest GPU, and whether that is within its memory; of
    tensors alone the peak of the fullest GPU, and of those of the first and the last pipeline rank."""

    rows: Strategies
    seconds: Floats
    peak_bytes: Floats
    fits: Bools
    tensor_bytes: Floats
    first_tensor_bytes: Floats
    last_tensor_bytes: Floats


def evaluate(context: Context, rows: Strategies) -> Verdict:
    """Return the verdict on `rows`, of any shapes."""
    return _verdict(context, rows, exact_seconds)


def bounded(context: Context, rows: Strategies) -> Verdict:
    """Return the verdict on `rows` at once: its seconds are lower bounds, as no pipeline is simulated."""
    return _verdict(context, rows, bound_seconds)


def simulated_seconds(context: Context, rows: Strategies, index: ShardIndex) -> Floats:
    """Return the exact seconds of an iteration, [N]. `index` is a layer table that covers `rows`."""
    return _seconds(context, rows, index, exact_seconds)


Timed = Callable[[Context, Strategies, Iteration], Floats]


def _verdict(context: Context, rows: Strategies, timed: Timed) -> Verdict:
    index = shard_index(context, rows)
    shards = index.of(rows)
    peak, tensors = np.zeros(len(rows)), np.zeros((3, len(rows)))
    for group, starts in _shapes(context, rows):
        of_part = replace(shards, row=shards.row[group])
        found = footprint(context, rows.take(group), of_part, starts)
        peak[group] = found.total.max(axis=1)
        tensors[:, group] = found.tensors.max(axis=1), found.tensors[:, 0], found.tensors[:, -1]
    return Verdict(
        rows=rows,
        seconds=_seconds(context, rows, index, timed),
        peak_bytes=peak,
        fits=peak <= context.memory_limit_bytes,
        tensor_bytes=tensors[0],
        first_tensor_bytes=tensors[1],
        last_tensor_bytes=tensors[2],
    )


def _seconds(context: Context, rows: Strategies, index: ShardIndex, timed: Timed) -> Floats:
    shards = index.of(rows)
    seconds = np.zeros(len(rows))
    for group, starts in _shapes(context, rows):
        part, of_part = rows.take(group), replace(shards, row=shards.row[group])
        seconds[group] = timed(context, part, iteration(context, part, of_part, starts))
    return seconds


def _shapes(context: Context, rows: Strategies) -> Iterator[tuple[Ints, Ints]]:
    """Yield the indices of rows with equal pipeline ranks and virtual stages, and where their stages start."""
    for group in shape_groups(rows.pp, rows.vpp):
        stages = int(rows.pp[group[0]] * rows.vpp[group[0]])
        yield group, boundaries(context.layer_count, stages, rows.first_layers[group], rows.last_layers[group])


def shape_groups(pp: Ints, vpp: Ints) -> list[Ints]:
    """Return the indices of rows with equal pipeline ranks and virtual stages."""
    return places_by_value(packed([pp, vpp], bits_of([pp, vpp])))
