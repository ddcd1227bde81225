"""Machines for tests of synthesis."""

from __future__ import annotations

from shardwright.synthesis.machines import Device, DeviceMachine, Machines

FAST = Device(name="fast", flops_per_second=3.86e9)
SLOW = Device(name="slow", flops_per_second=2.15e9)


def unequal(fast: int = 1, slow: int = 1, gpus: int = 2, network: float = 1.3e9, **fields: float) -> Machines:
    """Return `fast` and `slow` machines of `gpus` GPUs each."""
    machines = [DeviceMachine(device=FAST, gpus=gpus, link_bytes_per_second=120e9)] * fast
    machines += [DeviceMachine(device=SLOW, gpus=gpus, link_bytes_per_second=10e9)] * slow
    return Machines(machines=tuple(machines), network_bytes_per_second=network, **fields)


def pair(speed: float, network: float) -> Machines:
    """Return two machines of one GPU each, the first `speed` times as fast as the second."""
    devices = [Device(name=name, flops_per_second=rate * 1e9) for name, rate in (("fast", speed), ("slow", 1.0))]
    return Machines(
        machines=tuple(DeviceMachine(device=one, gpus=1, link_bytes_per_second=1e11) for one in devices),
        network_bytes_per_second=network,
        network_latency_seconds=0.0,
        call_seconds=2e-4,
    )
