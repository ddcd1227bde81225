"""The devices and links on which a program runs, as ranks and as classes of equal ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwright.arrays import Floats, Ints

OVERLAP_SLOWDOWN = 1e-3  # of what is sent while devices compute, as time lost; keeps equal times from being ties


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMachine:
    """`gpus` devices and the link between each and the others of the machine, one direction."""

    device: Device
    gpus: int
    link_bytes_per_second: float
    link_latency_seconds: float = 5e-6


@dataclass(frozen=True, kw_only=True)
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
        """The machine of each rank, [ranks]."""
        return np.repeat(np.arange(len(self.machines)), [machine.gpus for machine in self.machines])

    @cached_property
    def device_of(self) -> tuple[Device, ...]:
        """The device of each rank."""
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
        found: dict[DeviceMachine, list[int]] = {}
        for rank, number in enumerate(self.machine_of):
            found.setdefault(self.machines[number], []).append(rank)
        return tuple((machine, np.array(ranks)) for machine, ranks in found.items())

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
        machines = [replace(one, device=replace(one.device, memory_bytes=np.inf)) for one in self.machines]
        return replace(self, machines=tuple(machines))

    def proportional(self) -> tuple[float, ...]:
        """Return the shares in proportion to the speed of the devices."""
        return tuple((self.flops_per_second / self.flops_per_second.sum()).tolist())

    def even(self) -> tuple[float, ...]:
        """Return equal shares."""
        return (1.0 / self.ranks,) * self.ranks
