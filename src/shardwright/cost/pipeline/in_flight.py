"""How many micro-batches a pipeline rank holds activations of when it holds the most, in closed form."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Ints
from shardwright.cost.pipeline.schedule import warmup_forwards


def in_flight(ranks: Ints | int, virtual_stages: Ints | int, micro_batches: Ints | int, rank: Ints | int) -> Ints:
    """Return the peak number of activations that a rank holds, elementwise over arrays that broadcast.

    One unit is one micro-batch in one virtual stage: a forward that is done and whose backward is not. 1F1B (one
    virtual stage): min(K, P - rank). Interleaved: min(K * v, warmup + 1) with Megatron-LM's warm-up of
    2 * (P - 1 - rank) + (v - 1) * P forwards, since a rank runs one forward more before its first backward and from
    then on one of each. On average over equal virtual stages a unit is 1 / v of the rank's layers.
    """
    most = np.asarray(micro_batches) * np.asarray(virtual_stages)
    return np.asarray(np.minimum(most, warmup_forwards(ranks, virtual_stages, rank) + 1), dtype=np.intp)
