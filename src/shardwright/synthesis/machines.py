"""Machines of unequal devices and links, and what a conversion between properties takes on them: its least time, α–β,
and the method that has it.

Rings run through all ranks machine by machine, so each network card carries a ring once in each direction; it is
charged once a machine, however many GPUs share it. Beside what goes over links, a rank copies what it sends into a
buffer and what comes out of one (an all-reduce, once). Shares are those of the ranks, [ranks]; equal ranks are a class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.records import record
from shardwright.rows import grouped
from shardwright.synthesis.graph import Partial, Property, Replicated, Sharded

OVERLAP_SLOWDOWN = 1e-3  # of what is sent while devices compute, as time lost; keeps equal times from being ties


@record
class Device:
    """One kind of GPU: what it reaches in training, not its peak. `memory_bytes` is what parameters, their state and
    activations may take, `operator_seconds` what an operator takes besides, however small it is, `launch_seconds` what
    its host takes to launch one, which the device hides where it is slower."""

    name: str
    flops_per_second: float
    memory_bytes: float = float("inf")
    memory_bytes_per_second: float = float("inf")
    operator_seconds: float = 0.0
    launch_seconds: float = 0.0


@record
class DeviceMachine:
    """`gpus` devices and the link between each and the others of the machine, one direction."""

    device: Device
    gpus: int
    link_bytes_per_second: float
    link_latency_seconds: float = 5e-6


@record(slots=False)
class Machines:
    """Machines joined by a network; a machine's network card is shared by its GPUs. Ranks are numbered machine by
    machine. `call_seconds` is the start of one more message of a grouped call."""

    machines: tuple[DeviceMachine, ...]
    network_bytes_per_second: float
    network_latency_seconds: float = 2e-5
    call_seconds: float = 5e-6

    @cached_property
    def ranks(self) -> int:
        return sum(machine.gpus for machine in self.machines)

    @cached_property
    def machine_of(self) -> Ints:
        return np.repeat(np.arange(len(self.machines)), [machine.gpus for machine in self.machines])

    @cached_property
    def device_of(self) -> tuple[Device, ...]:
        return tuple(machine.device for machine in self.machines for _ in range(machine.gpus))

    @cached_property
    def flops_per_second(self) -> Floats:
        """[ranks]"""
        return np.array([device.flops_per_second for device in self.device_of])

    @cached_property
    def memory_bytes_per_second(self) -> Floats:
        """[ranks]"""
        return np.array([device.memory_bytes_per_second for device in self.device_of])

    @cached_property
    def classes(self) -> tuple[tuple[DeviceMachine, Ints], ...]:
        """Kinds of machines, in the order of their first, and the ranks of each."""
        ranks_of = grouped((self.machines[number], rank) for rank, number in enumerate(self.machine_of))
        return tuple((machine, np.array(ranks)) for machine, ranks in ranks_of.items())

    @cached_property
    def rates(self) -> tuple[Floats, Floats]:
        """FLOP/s and bytes of memory per second of a device of each class, each [classes]."""
        devices = [machine.device for machine, _ in self.classes]
        flops = np.array([device.flops_per_second for device in devices])
        return flops, np.array([device.memory_bytes_per_second for device in devices])

    @cached_property
    def limits(self) -> Floats:
        """The bytes that a device of each class has, [classes]."""
        return np.array([machine.device.memory_bytes for machine, _ in self.classes])

    def unlimited(self) -> Machines:
        """Return the machines with memory without end."""
        machines = [replace(machine, device=replace(machine.device, memory_bytes=np.inf)) for machine in self.machines]
        return replace(self, machines=tuple(machines))

    def proportional(self) -> tuple[float, ...]:
        """Return the shares in proportion to the speed of the devices."""
        return tuple((self.flops_per_second / self.flops_per_second.sum()).tolist())

    def even(self) -> tuple[float, ...]:
        return (1.0 / self.ranks,) * self.ranks


@record(kw_only=False)
class Sent:
    """A method, its seconds, and how many of them do not depend on the size."""

    method: str
    seconds: float
    latency_seconds: float = 0.0


def possible(source: Property, target: Property) -> bool:
    """Return whether a tensor can be converted: what is whole alone becomes a sum."""
    return source == target or not isinstance(target, Partial) or isinstance(source, Replicated)


def conversion(
    net: Machines, size_bytes: float, source: Property, target: Property, shares: Callable[[Sharded], Floats]
) -> Sent:
    """Return the fastest way to convert a tensor of `size_bytes`, where one is possible.

    A replicated tensor becomes a shard or a term of a sum without being sent.
    """
    if source == target:
        return Sent("slice", 0.0)
    if isinstance(source, Replicated):
        return Sent("keep_first" if isinstance(target, Partial) and net.ranks > 1 else "slice", 0.0)
    assert not isinstance(target, Partial), f"no conversion from {source} to {target}"
    found = _over_links(net, size_bytes, source, target, shares) if net.ranks > 1 else Sent("slice", 0.0)
    return replace(found, seconds=found.seconds + _copy_seconds(net, size_bytes, source, target, shares))


def _over_links(
    net: Machines, size_bytes: float, source: Property, target: Property, shares: Callable[[Sharded], Floats]
) -> Sent:
    if isinstance(source, Sharded) and isinstance(target, Sharded):
        return _between(net, size_bytes, source, target, shares)
    if isinstance(source, Sharded):
        return _cut(net, size_bytes, "all_gather", shares(source))
    if isinstance(target, Sharded):
        return _cut(net, size_bytes, "reduce_scatter", shares(target))
    return all_reduce(net, size_bytes)


def _between(
    net: Machines, size_bytes: float, source: Sharded, target: Sharded, shares: Callable[[Sharded], Floats]
) -> Sent:
    if source.dim == target.dim and source.outer == target.outer == 1:
        return reshare(net, size_bytes, shares(source), shares(target))
    return exchange(net, size_bytes, shares(source), shares(target))


def _cut(net: Machines, size_bytes: float, name: str, shares: Floats) -> Sent:
    gathering = _fastest(gather_padded(net, size_bytes, shares), gather_grouped(net, size_bytes, shares))
    return Sent(f"{name}_{gathering.method}", gathering.seconds, gathering.latency_seconds)


def _fastest(*ways: Sent) -> Sent:
    return min(ways, key=lambda way: way.seconds)


def _copy_seconds(
    net: Machines, size_bytes: float, source: Property, target: Property, shares: Callable[[Sharded], Floats]
) -> float:
    """Return the seconds in which the slowest rank copies, reading and writing, its parts before and after."""
    ends = (source, target) if isinstance(source, Sharded) or isinstance(target, Sharded) else (source,)
    parts = sum((shares(end) if isinstance(end, Sharded) else np.ones(net.ranks) for end in ends), np.zeros(net.ranks))
    return 2.0 * size_bytes * float((parts / net.memory_bytes_per_second).max())


def gather_padded(net: Machines, size_bytes: float, shares: Floats) -> Sent:
    """Ring all-gather or reduce-scatter: n - 1 steps of the largest part."""
    wire = size_bytes * float(shares.max()) * (net.ranks - 1)
    return _sent("padded", wire / ring_rate(net), ring_latency(net))


def gather_grouped(net: Machines, size_bytes: float, shares: Floats) -> Sent:
    """A broadcast from (or reduce to) each rank, one after the other through one pipelined ring: all bytes, no padding,
    and a call a rank."""
    held = int((shares > 0).sum())
    return _sent("grouped", size_bytes / ring_rate(net), ring_latency(net) + held * net.call_seconds)


def all_reduce(net: Machines, size_bytes: float) -> Sent:
    return _fastest(reduce_flat(net, size_bytes), reduce_hierarchical(net, size_bytes))


def reduce_flat(net: Machines, size_bytes: float) -> Sent:
    """Ring all-reduce: 2 (n - 1) / n of the bytes over every hop."""
    wire = 2 * size_bytes * (net.ranks - 1) / net.ranks
    return _sent("all_reduce", wire / ring_rate(net), 2 * ring_latency(net))


def reduce_hierarchical(net: Machines, size_bytes: float) -> Sent:
    """Reduce-scatter in each machine, all-reduce of each part between machines, all-gather in each machine."""
    many = len(net.machines)
    passes = [
        (machine.gpus - 1) / machine.gpus / machine.link_bytes_per_second
        for machine in net.machines
        if machine.gpus > 1
    ]
    inside = 2 * size_bytes * max(passes, default=0.0)
    between = 2 * size_bytes * (many - 1) / many / net.network_bytes_per_second
    steps = max((2 * (machine.gpus - 1) * machine.link_latency_seconds for machine in net.machines), default=0.0)
    return _sent("all_reduce_hierarchical", inside + between, steps + 2 * (many - 1) * net.network_latency_seconds)


def exchange(net: Machines, size_bytes: float, old: Floats, new: Floats) -> Sent:
    """All-to-all from one sharded dimension to another: who held the share S of the tensor, and will hold T of it,
    sends S (1 - T) and receives T (1 - S)."""
    out, into = np.bincount(net.machine_of, weights=old), np.bincount(net.machine_of, weights=new)
    between = float(np.maximum(out * (1 - into), into * (1 - out)).max()) / net.network_bytes_per_second
    links = np.array([machine.link_bytes_per_second for machine in net.machines])[net.machine_of]
    sent, received = old * (into[net.machine_of] - new), new * (out[net.machine_of] - old)
    inside = float((np.maximum(sent, received) / links).max())
    many = len(net.machines) > 1
    latency = (net.network_latency_seconds if many else 0.0) + (net.ranks - 1) * net.call_seconds
    return _sent("all_to_all", size_bytes * max(between if many else 0.0, inside), latency)


def reshare(net: Machines, size_bytes: float, old: Floats, new: Floats) -> Sent:
    """All-to-all from one ratio to another along the same dimension: what moves is where the stretches differ."""
    ends, starts = np.cumsum(old), np.cumsum(old) - old
    to, begin = np.cumsum(new), np.cumsum(new) - new
    both = np.maximum(np.minimum(ends[:, None], to) - np.maximum(starts[:, None], begin), 0.0)
    apart = net.machine_of[:, None] != net.machine_of
    machines = len(net.machines)
    out = np.bincount(net.machine_of, weights=(both * apart).sum(axis=1), minlength=machines)
    into = np.bincount(net.machine_of, weights=(both * apart).sum(axis=0), minlength=machines)
    between = float(max(out.max(), into.max())) / net.network_bytes_per_second
    links = np.array([machine.link_bytes_per_second for machine in net.machines])[net.machine_of]
    inside = float(((both * ~apart).sum(axis=1) - np.diag(both)).max() / links.min())
    latency = (net.network_latency_seconds if machines > 1 else 0.0) + (net.ranks - 1) * net.call_seconds
    return _sent("all_to_all", size_bytes * max(between, inside), latency)


def _sent(method: str, seconds: float, latency_seconds: float) -> Sent:
    return Sent(method, seconds + latency_seconds, latency_seconds)


def ring_rate(net: Machines) -> float:
    """Return the bytes per second of the slowest hop of a ring through all ranks."""
    inside = [machine.link_bytes_per_second for machine in net.machines if machine.gpus > 1]
    between = [net.network_bytes_per_second] if len(net.machines) > 1 else []
    return min([*inside, *between], default=np.inf)


def ring_latency(net: Machines) -> float:
    """Return the seconds of the steps of one pass of a ring."""
    inside = sum((machine.gpus - 1) * machine.link_latency_seconds for machine in net.machines)
    return inside + (len(net.machines) - 1) * net.network_latency_seconds
