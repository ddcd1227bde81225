"""The machines of a cluster as the search for programs sees them: rates that training reaches, links, memory."""

from __future__ import annotations

from shardwright.errors import bad
from shardwright.spec.cluster import Cluster, NodePool
from shardwright.synthesis.machines import Device, DeviceMachine, Machines

RESERVED_BYTES = 1.5e9  # CUDA context, NCCL buffers and fragments of the allocator


def machines_of(cluster: Cluster, precision: str, efficiency: float) -> Machines:
    """Return the machines of `cluster`, its pools one after another; each GPU reaches `efficiency` of its peak in
    `precision`. The network is as fast as the slowest machine's card. Raises `SpecError` where a GPU has no peak."""
    return Machines(
        machines=tuple(_machine(pool, precision, efficiency) for pool in cluster.pools for _ in range(pool.nodes)),
        network_bytes_per_second=min(pool.inter_bytes_per_second for pool in cluster.pools),
        network_latency_seconds=max(pool.inter_latency_seconds for pool in cluster.pools),
    )


def _machine(pool: NodePool, precision: str, efficiency: float) -> DeviceMachine:
    peak = pool.gpu.peak(precision)
    if peak is None:
        raise bad(pool.gpu.name, f"cannot compute in {precision}", "give the module parameters of another type")
    device = Device(
        name=pool.gpu.name,
        flops_per_second=peak * efficiency,
        memory_bytes=pool.memory_bytes - RESERVED_BYTES,
        memory_bytes_per_second=pool.gpu.memory_bytes_per_second,
    )
    return DeviceMachine(
        device=device,
        gpus=pool.gpus_per_node,
        link_bytes_per_second=pool.intra_bytes_per_second,
        link_latency_seconds=pool.intra_latency_seconds,
    )
