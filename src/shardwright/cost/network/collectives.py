"""Time of messages over the tiers of a cluster: collectives, tokens to their experts, and to host memory and back.

A group of a collective is `size` ranks that are `stride` ranks apart. Ranks of one NVLink domain talk at the GPU's
link bandwidth; between domains the ranks of a machine share its network, and since all groups of a machine run the
same collective at the same time, each rank has its part of it.

Dispatchers that know the topology (DeepEP, HybridEP; Megatron-LM's `flex`) send a token once to each machine that holds
any of its experts, and copy it there; `alltoall` sends a copy for each of its experts; `allgather` sends every token to
all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from shardwright.arrays import Array, Floats, Ints
from shardwright.records import record
from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.options import Dispatcher

OVERLAP_SLOWDOWN = 0.15  # of hidden communication, that the computation beside it loses; chosen, 0.05 to 0.3
PCIE_EFFICIENCY = 0.8  # of the link's rate, to and from host memory; chosen, 0.6 to 0.9


@record
class MessageTimes:
    """Ascending sizes in bytes and the seconds of a message of each, which never fall."""

    bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def of(self, size_bytes: Array) -> Floats:
        """Return the seconds of messages: on straight lines between the sizes that were measured; smaller ones take as
        long as the smallest, larger ones are as fast as the largest."""
        beyond = np.maximum(size_bytes / self.bytes[-1], 1.0)
        return np.asarray(np.interp(size_bytes, self.bytes, self.seconds) * beyond)


@record
class Fabric:
    """The links of one pool of machines as collectives see them. Bandwidths are per GPU, one direction, after
    protocol efficiency; latencies are of one step.

    `call_steps` is the start of a collective that uses the links of a domain, in their steps. Small messages do not
    fill the pipeline of a ring: they take `ramp_slowdown` times as long again, and large ones as long as that many
    times `ramp_bytes` (and `ramp_bytes_per_rank` for each rank) more would; between domains `inter_ramp_bytes` for each
    domain play that part. Rings of n ranks lose `pair_loss` / n of the bandwidth, and an all-reduce moves its bytes
    `reduce_gain` times as fast as a gather. Where each of `mesh_gpus` GPUs has links of its own to every other, n of
    them use (n - 1) / (mesh_gpus - 1) of a GPU's bandwidth; 0 stands for a switch. `intra_messages` and
    `inter_messages` are the times of single messages, where they were measured. Of racks of `rack_gpus` (0: there are
    none), `rack_bytes_per_second` leave each.
    """

    domain_gpus: int
    intra_bytes_per_second: float
    intra_latency_seconds: float
    inter_bytes_per_second: float
    inter_latency_seconds: float
    call_steps: float = 0.0
    ramp_bytes: float = 0.0
    ramp_bytes_per_rank: float = 0.0
    ramp_slowdown: float = 1.0
    inter_ramp_bytes: float = 0.0
    pair_loss: float = 0.0
    reduce_gain: float = 1.0
    mesh_gpus: int = 0
    intra_messages: MessageTimes | None = None
    inter_messages: MessageTimes | None = None
    rack_gpus: int = 0
    rack_bytes_per_second: float = 0.0


@record
class Group:
    """Groups as columns [N]: `size` ranks, `stride` ranks apart, of which `local` share a NVLink domain. Groups without
    a stride stay in their rack."""

    size: Array
    local: Array
    stride: Array | None = None

    @property
    def column(self) -> Group:
        """The same groups, [N, 1]."""
        stride = None if self.stride is None else self.stride[:, None]
        return Group(size=self.size[:, None], local=self.local[:, None], stride=stride)

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
    return Group(size=size, local=np.minimum(np.maximum(links.domain_gpus // stride, 1), size), stride=stride)


def product(inner: Group, outer: Group) -> Group:
    """Return the groups made of every inner group of an outer one (context × data parallel)."""
    whole = inner.local >= inner.size
    stride = None if outer.stride is None else outer.stride // inner.size
    return Group(
        size=inner.size * outer.size, local=np.where(whole, inner.local * outer.local, inner.local), stride=stride
    )


def gather_seconds(links: Fabric, groups: Group, size_bytes: Array) -> Floats:
    """Return the time of an all-gather (or reduce-scatter) whose full buffer has `size_bytes`, [N].

    One ring through all ranks: each receives (n-1)/n of the buffer. Inside a domain at link speed; between domains the
    local ranks carry it together, on as many rings. The latency is that of a step to every other rank.
    """
    inside, between = groups.domains * (groups.local - 1.0), groups.domains - 1.0
    return _ring_seconds(links, groups, size_bytes, inside, between, passes=1.0, gain=1.0)


def reduce_seconds(links: Fabric, groups: Group, size_bytes: Array) -> Floats:
    """Return the time of an all-reduce, [N]: the bytes of a reduce-scatter and an all-gather in one call, and the steps
    of a tree between domains."""
    _, depth = np.frexp(groups.domains - 1.0)  # ⌈log₂ domains⌉, exactly
    return _ring_seconds(links, groups, size_bytes, groups.local - 1.0, depth, passes=2.0, gain=links.reduce_gain)


def _ring_seconds(
    links: Fabric,
    groups: Group,
    size_bytes: Array,
    inside: Floats,
    between: Floats,
    *,
    passes: float,
    gain: float,
) -> Floats:
    """Return the time of `passes` passes over the buffer, each with `inside` steps in domains and `between` steps
    between them."""
    size, local, domains = groups.size, groups.local, groups.domains
    moved = size_bytes * (size - 1) / size
    intra = ramped(links, moved, links.ramp_bytes + links.ramp_bytes_per_rank * local) / (
        gain * ring_rate(links, local)
    )
    inter = ramped(links, moved / local, links.inter_ramp_bytes * domains) / ring_pace(links, groups)
    slowest = np.maximum(np.where(local > 1, intra, 0.0), np.where(domains > 1, inter, 0.0))
    steps = inside * links.intra_latency_seconds + between * links.inter_latency_seconds
    return np.where(size > 1, passes * (slowest + steps) + _call_seconds(links, groups), 0.0)


def exchange_seconds(links: Fabric, groups: Group, size_bytes: Array) -> Floats:
    """Return the time of an all-to-all in which each rank sends `size_bytes` in equal parts to all, [N]."""
    size, local = groups.size, groups.local
    inside = size_bytes * (local - 1) / size
    intra = ramped(links, inside, links.ramp_bytes + links.ramp_bytes_per_rank * local) / ring_rate(links, local)
    inter = size_bytes * (size - local) / size / links.inter_bytes_per_second
    if links.rack_gpus and groups.stride is not None:
        inside_rack = np.clip(links.rack_gpus // groups.stride, 1, size)
        leaving = size_bytes * (size - inside_rack) / size
        inter = np.maximum(inter, leaving * links.rack_gpus / links.rack_bytes_per_second)
    latency = np.where(groups.domains > 1, links.inter_latency_seconds, links.intra_latency_seconds)
    return np.where(size > 1, np.maximum(intra, inter) + latency + _call_seconds(links, groups), 0.0)


def transfer_seconds(links: Fabric, size_bytes: Array, crosses: Array) -> Floats:
    """Return the time to send `size_bytes` from one GPU to another; `crosses` says whether they are in different
    domains."""
    inside = links.intra_bytes_per_second * mesh_share(links, np.array(2))
    near = _message_seconds(size_bytes, links.intra_latency_seconds, inside, links.intra_messages)
    far = _message_seconds(size_bytes, links.inter_latency_seconds, links.inter_bytes_per_second, links.inter_messages)
    return np.asarray(np.where(crosses, far, near))


def _message_seconds(
    size_bytes: Array, latency_seconds: float, rate: Array | float, measured: MessageTimes | None
) -> Floats:
    return np.asarray(latency_seconds + size_bytes / rate) if measured is None else measured.of(size_bytes)


def ramped(links: Fabric, moved_bytes: Array, ramp_bytes: Array | float) -> Floats:
    """Return the bytes that take as long at full bandwidth as `moved_bytes` do while the pipeline fills."""
    filling = ramp_bytes / np.maximum(moved_bytes + ramp_bytes, 1e-300)
    return np.asarray(moved_bytes * (1.0 + links.ramp_slowdown * filling))


def mesh_share(links: Fabric, local: Array) -> Floats:
    """Return the part of a GPU's links that lead to the `local` ranks of a group."""
    if links.mesh_gpus < 2:
        return np.ones(np.shape(local))
    return np.clip((local - 1) / (links.mesh_gpus - 1), 1 / (links.mesh_gpus - 1), 1.0)


def ring_rate(links: Fabric, local: Array) -> Floats:
    """Return the bytes per second that each of `local` ranks of a domain moves in a ring."""
    return np.asarray(
        links.intra_bytes_per_second * mesh_share(links, local) * (1.0 - links.pair_loss / np.maximum(local, 2))
    )


def ring_pace(links: Fabric, groups: Group) -> Floats | float:
    """Return the bytes per second that a GPU moves to another domain in a ring. Each ring leaves a rack once, so that
    as many rings as there are ranks between two of one share what leaves it, and no fewer than a domain has GPUs."""
    if not links.rack_gpus or groups.stride is None:
        return links.inter_bytes_per_second
    at_once = np.clip(groups.stride, links.domain_gpus, links.rack_gpus)
    shared = np.minimum(links.inter_bytes_per_second, links.rack_bytes_per_second / at_once)
    return np.where(links.rack_gpus % (groups.size * groups.stride) > 0, shared, links.inter_bytes_per_second)


SECONDS: Mapping[str, Callable[[Fabric, Group, Array], Floats]] = {
    "all_reduce": reduce_seconds,
    "all_gather": gather_seconds,
    "reduce_scatter": gather_seconds,
    "all_to_all": exchange_seconds,
}
"""What collectives take, by the names that measurements have."""


def rack_seconds(links: Fabric, size_bytes: Array, senders: Array) -> Floats:
    """Return the least time to send `size_bytes` to another rack from each of `senders` GPUs, neighbours of each other;
    0 without racks."""
    if not links.rack_gpus:
        return np.zeros(np.broadcast(size_bytes, senders).shape)
    pace = links.rack_bytes_per_second / np.minimum(senders, links.rack_gpus)
    return np.asarray(size_bytes / pace + links.inter_latency_seconds)


def _call_seconds(links: Fabric, groups: Group) -> Floats:
    return np.where(groups.local > 1, links.call_steps * links.intra_latency_seconds, 0.0)


def exposed_seconds(communication: Array, computation: Array) -> Floats:
    """Return what communication adds to a time in which `computation` runs beside it: the part that does not fit,
    and `OVERLAP_SLOWDOWN` of the part that does, since both share the memory and the multiprocessors."""
    hidden = np.minimum(communication, computation)
    return np.asarray(communication - hidden + OVERLAP_SLOWDOWN * hidden)


def stage_crossings(gpus: int, pp: int, stride: Ints) -> Array:
    """Return whether the step from pipeline rank i to i + 1 (the last: back to rank 0) leaves a domain or a rack of
    `gpus` GPUs, [N, pp]."""
    ranks = np.arange(pp) * stride[:, None]
    places = ranks // gpus
    return np.asarray(places != np.roll(places, -1, axis=1))


def dispatch_seconds(links: Fabric, groups: Group, token_bytes: Array, copies: Array, dispatcher: Dispatcher) -> Floats:
    """Return the time, [N], in which each rank sends `token_bytes` of tokens to experts, which are spread evenly over
    `groups`, so many `copies` of a token.

    A token with k copies visits D (1 - (1 - 1/D)^k) of D machines on average. Inside a machine every copy travels.
    """
    size, local, domains = groups.size, groups.local, groups.domains
    if dispatcher == "allgather":
        return np.where(size > 1, gather_seconds(links, groups, token_bytes * size), 0.0)
    if dispatcher == "alltoall":
        visited, inner = copies, (local - 1.0) / size
    else:
        visited, inner = domains * (1.0 - (1.0 - 1.0 / domains) ** copies), (local - 1.0) / local
    outside = token_bytes * visited * (domains - 1.0) / domains / links.inter_bytes_per_second
    inside = token_bytes * copies * inner / links.intra_bytes_per_second
    latency = np.where(domains > 1, links.inter_latency_seconds, links.intra_latency_seconds)
    return np.where(size > 1, np.maximum(inside, outside) + latency, 0.0)


def to_host_seconds(gpu: Gpu, size: Array | float) -> Floats:
    """Return the time in which a GPU sends `size` bytes to the memory of its machine, or takes them from there."""
    return np.asarray(size / (gpu.pcie_bytes_per_second * PCIE_EFFICIENCY))


def exposed_offload_seconds(gpu: Gpu, size: Array, forward: Array, backward: Array) -> Floats:
    """Return what a layer waits whose input of `size` bytes leaves the GPU beside its forward pass and comes back
    beside the backward pass of the layer after it, which runs forward again."""
    travelling = to_host_seconds(gpu, size)
    return np.maximum(travelling - forward, 0.0) + np.maximum(travelling - forward - backward, 0.0)
