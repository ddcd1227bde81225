"""Which layers each virtual stage of a pipeline holds."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Ints


def boundaries(layers: int, stages: int, first: Ints, last: Ints) -> Ints:
    """Return the layer at which each virtual stage starts, [N, stages + 1], for stages that share `layers` layers.

    The first stage has `first` layers and the last `last`; those between have equal numbers, or one more, and the
    larger ones come last, where fewer micro-batches are in flight.
    """
    counts = np.zeros((len(first), stages), dtype=np.int64)
    counts[:, 0] = first
    if stages > 1:
        counts[:, -1] = last
    if stages > 2:
        middle = layers - first - last
        whole, extra = np.divmod(middle, stages - 2)
        larger = np.arange(stages - 2) >= (stages - 2 - extra)[:, None]
        counts[:, 1:-1] = whole[:, None] + larger
    starts = np.zeros((len(first), stages + 1), dtype=np.int64)
    np.cumsum(counts, axis=1, out=starts[:, 1:])
    return starts
