"""Time of sending tokens to their experts: an all-to-all in which a token crosses to a machine once.

Dispatchers that know the topology (DeepEP, HybridEP; Megatron-LM's flex dispatcher) send a token once to each machine
that holds any of its experts, and copy it there.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.cost.network.collectives import Fabric, Group


def dispatch_seconds(links: Fabric, groups: Group, token_bytes: Array, top_k: int) -> Floats:
    """Return the time, [N], in which each rank sends `token_bytes` of tokens to `top_k` experts each, which are spread
    evenly over `groups`.

    A token visits D (1 - (1 - 1/D)^k) of D machines on average. Inside a machine every copy travels.
    """
    size, local, domains = groups.size, groups.local, groups.domains
    visited = domains * (1.0 - (1.0 - 1.0 / domains) ** top_k)
    outside = token_bytes * visited * (domains - 1.0) / domains / links.inter_bytes_per_second
    inside = token_bytes * top_k * (local - 1.0) / local / links.intra_bytes_per_second
    latency = np.where(domains > 1, links.inter_latency_seconds, links.intra_latency_seconds)
    return np.where(size > 1, np.maximum(inside, outside) + latency, 0.0)
