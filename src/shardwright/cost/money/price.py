"""What a strategy costs in US dollars."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.spec.cluster import NodePool


def dollars_per_hour(pool: NodePool, gpus: Array) -> Floats | None:
    """Return the price of the machines that `gpus` GPUs occupy, whole machines, [N]; None without a price."""
    if pool.dollars_per_node_hour is None:
        return None
    return np.asarray(np.ceil(np.asarray(gpus) / pool.gpus_per_node) * pool.dollars_per_node_hour)
