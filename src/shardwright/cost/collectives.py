"""Time of collectives over the tiers of a cluster: α–β, hierarchical, with the sharing of each machine's network.

A group of a collective is `size` ranks that are `stride` ranks apart. Ranks of one NVLink domain talk at the GPU's
link bandwidth; between domains the ranks of a machine share its network, and since all groups of a machine run the
same collective at the same time, each rank has its part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.strategy import Array, Floats, Ints
from shardwright.spec.cluster import NodePool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of one pool of machines as collectives see them. Bandwidths are per GPU, one direction, after
    protocol efficiency; latencies are of one step."""

    domain_gpus: int
    intra_bytes_per_second: float
    intra_latency_seconds: float
    inter_bytes_per_second: float
    inter_latency_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Groups as columns [N]: `size` ranks, of which `local` share a NVLink domain."""

    size: Array
    local: Array

    @property
    def domains(self) -> Floats:
        """Domains that a group spans, [N]."""
        return np.ceil(self.size / self.local)


def fabric(pool: NodePool, *, intra_efficiency: float, inter_efficiency: float) -> Fabric:
    """Return the links of `pool`, derated by the efficiency that collectives reach on them."""
    return Fabric(
        domain_gpus=pool.domain_gpus,
        intra_bytes_per_second=pool.intra_bytes_per_second * intra_efficiency,
        intra_latency_seconds=pool.intra_latency_seconds,
        inter_bytes_per_second=pool.inter_bytes_per_second * inter_efficiency / pool.gpus_per_node,
        inter_latency_seconds=pool.inter_latency_seconds,
    )


def group(links: Fabric, size: Array, stride: Array) -> Group:
    """Return groups of `size` ranks at distance `stride`, aligned to the domains."""
    return Group(size=size, local=np.clip(links.domain_gpus // stride, 1, size))


def product(inner: Group, outer: Group) -> Group:
    """Return the groups made of every inner group of an outer one (context × data parallel)."""
    whole = inner.local >= inner.size
    return Group(size=inner.size * outer.size, local=np.where(whole, inner.local * outer.local, inner.local))


def gather_seconds(links: Fabric, groups: Group, size_bytes: Array) -> Floats:
    """Return the time of an all-gather (or reduce-scatter) whose full buffer has `size_bytes`, [N].

    Ring: each rank receives (n-1)/n of the buffer. Inside a domain at link speed; between domains the local ranks
    carry it together. The latency is that of a ring inside and of recursive doubling between domains.
    """
    size, local, domains = groups.size, groups.local, groups.domains
    intra = np.where(local > 1, size_bytes * (size - 1) / size / links.intra_bytes_per_second, 0.0)
    inter = size_bytes * (domains - 1) / domains / (links.inter_bytes_per_second * local)
    steps = (local - 1) * links.intra_latency_seconds + np.ceil(np.log2(domains)) * links.inter_latency_seconds
    return np.where(size > 1, np.maximum(intra, inter) + steps, 0.0)


def reduce_seconds(links: Fabric, groups: Group, size_bytes: Array) -> Floats:
    """Return the time of an all-reduce: a reduce-scatter and an all-gather, [N]."""
    return 2.0 * gather_seconds(links, groups, size_bytes)


def exchange_seconds(links: Fabric, groups: Group, size_bytes: Array) -> Floats:
    """Return the time of an all-to-all in which each rank sends `size_bytes` in equal parts to all, [N]."""
    size, local = groups.size, groups.local
    intra = size_bytes * (local - 1) / size / links.intra_bytes_per_second
    inter = size_bytes * (size - local) / size / links.inter_bytes_per_second
    latency = np.where(groups.domains > 1, links.inter_latency_seconds, links.intra_latency_seconds)
    return np.where(size > 1, np.maximum(intra, inter) + latency, 0.0)


def transfer_seconds(links: Fabric, size_bytes: Array, crosses: Array) -> Floats:
    """Return the time to send `size_bytes` from one GPU to another; `crosses` says whether they are in different
    domains."""
    bandwidth = np.where(crosses, links.inter_bytes_per_second, links.intra_bytes_per_second)
    latency = np.where(crosses, links.inter_latency_seconds, links.intra_latency_seconds)
    return np.asarray(size_bytes / bandwidth + latency)


def exposed_seconds(communication: Array, computation: Array, *, slowdown: float) -> Floats:
    """Return what communication adds to a time in which `computation` runs beside it: the part that does not fit,
    and a `slowdown` of the part that does, since both share the memory and the multiprocessors."""
    hidden = np.minimum(communication, computation)
    return np.asarray(communication - hidden + slowdown * hidden)


def stage_crossings(links: Fabric, pp: int, stride: Ints) -> Array:
    """Return whether the step from pipeline rank i to i + 1 (the last: back to rank 0) leaves a domain, [N, pp]."""
    ranks = np.arange(pp) * stride[:, None]
    domains = ranks // links.domain_gpus
    return np.asarray(domains != np.roll(domains, -1, axis=1))
