"""Bytes and repeated seconds of stages: what their recomputation keeps, frees and runs again.

Stages are `Ranges` of any shape; `mode` (codes of `cost.strategies`) and `count` (Megatron-LM's
--recompute-num-layers) broadcast to it.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Array, Floats, Ints
from shardwright.cost.stage.ranges import Ranges
from shardwright.cost.stage.terms import AGAIN, FIRST, GROUPED, LEAN, REST


def kept_bytes(kept: Floats, stages: Ranges, mode: Array | int, count: Array | int) -> Floats:
    """Return the bytes that one micro-batch leaves on each stage until its backward pass; `kept` [M, 3, L + 3] are
    running sums by state."""
    first, rest, grouped = FIRST[mode], REST[mode], GROUPED[mode]
    total, differ = stages.total(kept, rest), first != rest
    if np.any(differ):
        some = np.where(differ, count, 0)
        total = total - (stages.first(kept, some, rest) - stages.first(kept, some, first))
    if np.any(grouped):
        inputs, length = stages.layers(kept, AGAIN), np.maximum(stages.length, 1)
        total = total - np.where(grouped, inputs - inputs * (-(-length // np.maximum(count, 1))) / length, 0.0)
    return np.asarray(total)


def live_bytes(
    live: Floats, group: Floats, row: Ints, mode: Array | int, count: Array | int, longest: Array | int
) -> Floats:
    """Return the bytes that live beside what is kept while a layer runs backward, of stages with the rows `row` of
    tables: `live` [M, 3] by state, `group` [M] for each layer that runs again together, up to the `longest` of a rank's
    stages."""
    together = np.where(GROUPED[mode], np.minimum(count, longest), FIRST[mode] == AGAIN)
    return np.asarray(group[row] * together + live[row, FIRST[mode]])


def repeated_seconds(forward: Floats, core: Floats, stages: Ranges, mode: Array | int, count: Array | int) -> Floats:
    """Return the seconds of a backward pass that run again: of whole layers, or of what selective recomputation repeats
    (`core`). Both are running sums [M, L + 3]."""
    first, count = FIRST[mode], np.where(GROUPED[mode], stages.length, count)
    seconds = stages.first(forward, np.where(first == AGAIN, count, 0))
    if np.any(first == LEAN):
        seconds = seconds + np.where(first == LEAN, stages.total(core), 0.0)
    return seconds
