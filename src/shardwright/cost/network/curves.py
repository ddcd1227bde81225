"""Links as a user measured them: seconds of messages by size, in place of a latency and a bandwidth.

A curve between machines is of one message at a time. A machine whose network carries n such messages at full speed
gives each of its g GPUs, all of which send at once, the pace of n / g of the measured link.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.cost.network.collectives import Fabric, MessageTimes
from shardwright.records import record
from shardwright.spec.cluster import NodePool
from shardwright.spec.layer_profile import LayerProfile, LinkCurve

LEAST_START = 0.1  # of the time of the smallest message, before it moves; chosen, 0 to 0.5


@record
class LinkTimes:
    """A measured link as one GPU finds it: the times of messages, and the latency and the bandwidth (bytes per second)
    that large ones reach."""

    messages: MessageTimes
    latency_seconds: float
    bytes_per_second: float


def inside_machine(profile: LayerProfile, pool: NodePool) -> LinkTimes | None:
    """Return the link between GPUs of one machine: the curve with most of its ranks talking, None without one."""
    name = pool.gpu.kind
    curves = [
        curve
        for curve in profile.links
        if curve.scope == "intra_node" and curve.source == curve.target == name
        if (curve.ranks or 2) <= pool.gpus_per_node
    ]
    return _shared(max(curves, key=lambda curve: curve.ranks or 2), 1.0) if curves else None


def between_machines(profile: LayerProfile, pool: NodePool, other: str) -> LinkTimes | None:
    """Return the link from a machine of `pool` to one with GPUs of type `other`, the slower where both directions were
    measured, None without either."""
    ends = ((pool.gpu.kind, other), (other, pool.gpu.kind))
    curves = [curve for curve in profile.links if curve.scope == "inter_node" and (curve.source, curve.target) in ends]
    if not curves:
        return None
    curve = min(curves, key=lambda candidate: candidate.bytes[-1] / candidate.seconds[-1])
    at_once = np.clip(round(pool.inter_bytes_per_second / (curve.bytes[-1] / curve.seconds[-1])), 1, pool.gpus_per_node)
    return _shared(curve, pool.gpus_per_node / float(at_once))


def with_curves(links: Fabric, inside: LinkTimes | None, between: LinkTimes | None) -> Fabric:
    """Return `links` with the measured ones in their place."""
    if inside is not None:
        links = replace(
            links,
            intra_latency_seconds=inside.latency_seconds,
            intra_bytes_per_second=inside.bytes_per_second,
            intra_messages=inside.messages,
            ramp_bytes=0.0,
            ramp_bytes_per_rank=0.0,
            call_steps=0.0,
            pair_loss=0.0,
            reduce_gain=1.0,
            mesh_gpus=0,
        )
    if between is not None:
        links = replace(
            links,
            inter_latency_seconds=between.latency_seconds,
            inter_bytes_per_second=between.bytes_per_second,
            inter_messages=between.messages,
            inter_ramp_bytes=0.0,
        )
    return links


def _shared(curve: LinkCurve, sharing: float) -> LinkTimes:
    """Return a link that `sharing` GPUs use at once. A larger message never takes less time than a smaller one."""
    seconds = np.minimum.accumulate(np.array(curve.seconds)[::-1])[::-1]
    sizes = np.array(curve.bytes) / sharing
    slope = (seconds[1] - seconds[0]) / (sizes[1] - sizes[0]) if len(sizes) > 1 else 0.0
    start = max(seconds[0] - slope * sizes[0], LEAST_START * seconds[0])
    return LinkTimes(
        messages=MessageTimes(bytes=tuple(sizes.tolist()), seconds=tuple(seconds.tolist())),
        latency_seconds=float(start),
        bytes_per_second=float(sizes[-1] / seconds[-1]),
    )
