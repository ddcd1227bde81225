"""What gradients and weights leave to do after the pipeline."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.cost.network.collectives import exposed_seconds


def left_over(travelling: Floats, passes: Floats, share: Array | float, first: Floats) -> Floats:
    """Return what `travelling` seconds of each rank leave after the pipeline, [N, P], where they run beside a `share`
    of its own `passes`, and then beside those of the ranks before it, `first` of each, which end later (begin earlier).
    """
    before = np.cumsum(first, axis=1) - first
    return np.asarray(np.maximum(exposed_seconds(travelling, share * passes) - before, 0.0))
