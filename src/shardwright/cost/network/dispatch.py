"""Time of sending tokens to their experts.

Dispatchers that know the topology (DeepEP, HybridEP; Megatron-LM's `flex`) send a token once to each machine that holds
any of its experts, and copy it there; `alltoall` sends a copy for each of its experts; `allgather` sends every token to
all ranks.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.cost.network.collectives import Fabric, Group, gather_seconds
from shardwright.spec.options import Dispatcher


def dispatch_seconds(links: Fabric, groups: Group, token_bytes: Array, top_k: int, dispatcher: Dispatcher) -> Floats:
    """Return the time, [N], in which each rank sends `token_bytes` of tokens to `top_k` experts each, which are spread
    evenly over `groups`.

    A token visits D (1 - (1 - 1/D)^k) of D machines on average. Inside a machine every copy travels.
    """
    size, local, domains = groups.size, groups.local, groups.domains
    if dispatcher == "allgather":
        return np.where(size > 1, gather_seconds(links, groups, token_bytes * size), 0.0)
    if dispatcher == "alltoall":
        visited, inner = top_k * np.ones_like(domains), (local - 1.0) / size
    else:
        visited, inner = domains * (1.0 - (1.0 - 1.0 / domains) ** top_k), (local - 1.0) / local
    outside = token_bytes * visited * (domains - 1.0) / domains / links.inter_bytes_per_second
    inside = token_bytes * top_k * inner / links.intra_bytes_per_second
    latency = np.where(domains > 1, links.inter_latency_seconds, links.intra_latency_seconds)
    return np.where(size > 1, np.maximum(inside, outside) + latency, 0.0)
