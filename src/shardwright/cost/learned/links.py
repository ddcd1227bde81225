"""Links as collectives were measured to find them: a few numbers for each way in which the GPUs of a machine are
joined, and for the network between machines.

`data/links.csv` has a row for each kind of link and, where an architecture was measured, one for it; `data/network.csv`
has the one of networks. Both are fitted by `python -m tools.refit operators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from math import inf

from shardwright.cost.network.collectives import Fabric
from shardwright.files import shipped_table
from shardwright.records import record
from shardwright.spec.catalog.gpus import gpus_with
from shardwright.spec.catalog.machines import links
from shardwright.spec.cluster import Gpu, NodePool

SWITCH, MESH, PCIE = KINDS = ("switch", "mesh", "pcie")
# Links of a domain so many times as fast as PCIe are bridges. The slowest bridge, that of RTX 3090, has 1.8 times the
# rate of PCIe 4.0 (56 GB/s a direction: NVIDIA Ampere GA102 GPU architecture white paper).
BRIDGE_GAIN = 1.5  # chosen, 1.1 to 1.7
# Bytes per second of a GPU in a ring over so many of a machine where what GPUs send goes through the host: medians of
# all collectives above 30 MB on machines of L40S (ai-dynamo/aiconfigurator@095f58a) and RTX 3090
# (eth-easl/sailor@cf2c8e3); of the others none was measured, and these are assumed.
HOST_RATES = ((2, 19e9), (4, 4.7e9), (8, 1.4e9))  # measured


@record
class LinkFit:
    """What collectives make of one kind of link; `efficiency` is the share of the data sheet's bandwidth that long
    rings reach, the others are those of `Fabric`."""

    efficiency: float
    pair_loss: float
    reduce_gain: float
    call_steps: float
    ramp_bytes: float
    ramp_bytes_per_rank: float
    ramp_slowdown: float


@record
class NetworkFit:
    """What collectives make of a network: the share of its bandwidth, its latencies over those of the catalogue, and
    the bytes for each machine at which its rings are filled."""

    efficiency: float
    latency: float
    ramp_bytes: float


LinkFits = Mapping[tuple[str, str], LinkFit]  # by kind and architecture; "" stands for any


def link_kind(pool: NodePool) -> str:
    """Return how the GPUs of a domain are joined. Cards on PCIe with links stated to be far faster have bridges. A
    domain of more GPUs than a mesh of their links has (DGX-2) has switches."""
    gpu = pool.gpu
    if gpu.link.startswith("PCIe"):
        bridged = pool.intra_bytes_per_second > BRIDGE_GAIN * gpu.link_bytes_per_second
        return SWITCH if bridged else PCIE
    link = links().get(gpu.link)  # a plan file may name one that the catalogue has not
    mesh = (link is not None and link.mesh) or gpu.kind in gpus_with("mesh")
    return MESH if mesh and pool.domain_gpus <= mesh_gpus(gpu) else SWITCH


def mesh_gpus(gpu: Gpu) -> int:
    """Return how many GPUs the links of one reach where there is no switch."""
    return max(gpu.link_domain, 2)


def through_host(pool: NodePool) -> float:
    """Return the bytes per second of a GPU in a ring over its machine if that goes through the host, else infinity. Who
    states a rate of his own knows his links."""
    stated = pool.intra_bytes_per_second != pool.gpu.link_bytes_per_second
    if stated or pool.gpu.kind not in gpus_with("through_host"):
        return inf
    return next((rate for gpus, rate in HOST_RATES if pool.domain_gpus <= gpus), HOST_RATES[-1][1])


def slower_when_whole(pool: NodePool) -> bool:
    """Return whether fewer GPUs of a machine would go through the host at another rate than all."""
    return through_host(pool) < HOST_RATES[0][1]


def in_use(pool: NodePool, gpus: int) -> NodePool:
    """Return the machines as a plan on `gpus` of them alone finds them: one machine of so many where part of one is
    faster than the whole."""
    if gpus >= pool.gpus_per_node or pool.mixed or not slower_when_whole(pool):
        return pool
    memory = pool.host_memory_bytes_per_gpu * gpus
    return replace(pool, nodes=1, gpus_per_node=gpus, domain_gpus=gpus, host_memory_bytes=memory)


def faster_parts(pool: NodePool) -> tuple[NodePool, ...]:
    """Return the largest part of a machine at each rate that is above the rate of the whole machine."""
    parts = (in_use(pool, gpus) for gpus, rate in HOST_RATES if rate > through_host(pool))
    return tuple(part for part in parts if part != pool)


def fit_of(fits: LinkFits, pool: NodePool) -> LinkFit:
    """Return the fit of the pool's architecture, or that of its kind of link."""
    kind = link_kind(pool)
    return fits.get((kind, pool.gpu.architecture), fits[kind, ""])


def link_fabric(pool: NodePool, fit: LinkFit, network: NetworkFit) -> Fabric:
    """Return the links of `pool` as the fits have them."""
    return Fabric(
        domain_gpus=pool.domain_gpus,
        intra_bytes_per_second=min(pool.intra_bytes_per_second * fit.efficiency, through_host(pool)),
        intra_latency_seconds=pool.intra_latency_seconds,
        inter_bytes_per_second=pool.inter_bytes_per_second * network.efficiency / pool.gpus_per_node,
        inter_latency_seconds=pool.inter_latency_seconds * network.latency,
        call_steps=fit.call_steps,
        ramp_bytes=fit.ramp_bytes,
        ramp_bytes_per_rank=fit.ramp_bytes_per_rank,
        ramp_slowdown=fit.ramp_slowdown,
        inter_ramp_bytes=network.ramp_bytes,
        pair_loss=fit.pair_loss,
        reduce_gain=fit.reduce_gain,
        mesh_gpus=mesh_gpus(pool.gpu) if link_kind(pool) == MESH else 0,
    )


@cache
def shipped_links() -> LinkFits:
    """Return the fits of links that ship."""
    names = [field.name for field in fields(LinkFit)]
    return {
        (row["kind"], row["architecture"]): LinkFit(**{name: float(row[name]) for name in names})
        for row in shipped_table("shardwright.cost.learned", "links.csv")
    }


@cache
def shipped_network() -> NetworkFit:
    """Return the fit of networks that ships."""
    (row,) = shipped_table("shardwright.cost.learned", "network.csv")
    return NetworkFit(**{name: float(value) for name, value in row.items()})
