"""Links of a mixed plan: between neighbouring stages, and among all holders of a layer, within a site and across."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from shardwright.cost.collectives import Fabric, Group, rack_seconds, transfer_seconds
from shardwright.cost.context import Context
from shardwright.cost.lanes import Lane, outermost
from shardwright.cost.link_curves import LinkTimes
from shardwright.cost.step import DataParallel, data_parallel, message_bytes
from shardwright.plan.plan import Plan, Replica
from shardwright.spec.cluster import Cluster, NodePool


def move_seconds(plan: Plan, replica: Replica, lanes: list[Lane], places: list[int], stage: int) -> float:
    """Return the seconds of a message from a stage to the next one (the last: to the first). The side with fewer
    tensor-parallel ranks sends or receives more on each."""
    here, there = lanes[stage], lanes[(stage + 1) % len(lanes)]
    size = max(float(message_bytes(lane.context, lane.row)[0]) for lane in (here, there))
    mine, other = here.context.pool, there.context.pool
    if mine is other or mine.gpu.name == other.gpu.name:
        domain = mine.domain_gpus
        ends, links = (places[stage], places[(stage + 1) % len(lanes)]), here.context.links
        crosses = ends[0] // domain != ends[1] // domain
        seconds = float(transfer_seconds(links, np.array([size]), np.array([crosses]))[0])
        if links.rack_gpus and ends[0] // links.rack_gpus != ends[1] // links.rack_gpus:
            senders = np.array([(1 if outermost(plan) else replica.count) * replica.stages[stage].gpus])
            seconds = max(seconds, float(rack_seconds(links, np.array([size]), senders)[0]))
        return seconds
    both = [
        float(transfer_seconds(lane.context.links, np.array([size]), np.array([True]))[0]) for lane in (here, there)
    ]
    both += [float(link.messages.of(np.array(size))) for link in _measured_between(here, there)]
    talking = _pipelines_between(plan, mine, other) * min(int(here.row.tp[0]), int(there.row.tp[0]))
    return max(*both, *(size * talking / rate + delay for rate, delay in _site_link(plan.cluster, mine, other)))


def _measured_between(here: Lane, there: Lane) -> Iterator[LinkTimes]:
    """Yield the link between machines of two types as a GPU of either finds it, where it was measured."""
    for lane, end in ((here, there), (there, here)):
        measured = lane.context.measured
        link = measured.between(lane.context.pool, end.context.pool) if measured else None
        if link is not None:
            yield link


def _pipelines_between(plan: Plan, one: NodePool, other: NodePool) -> int:
    """Return how many pipelines have neighbouring stages at the sites of two pools, and so share the link of these."""
    sites = {pool.gpu.name: pool.site for pool in plan.cluster.pools}
    ends = {one.site, other.site}
    return sum(
        replica.count
        for replica in plan.replicas
        if any({sites[a.gpu], sites[b.gpu]} == ends for a, b in pairwise(replica.stages))
    )


def _site_link(cluster: Cluster, one: NodePool, other: NodePool) -> Iterator[tuple[float, float]]:
    """Yield bandwidth and latency of the link between the sites of two pools, if they stand at different ones."""
    for link in cluster.site_links:
        if one.site != other.site and set(link.sites) == {one.site, other.site}:
            yield link.bytes_per_second, link.latency_seconds


def holders(
    plan: Plan, replica: Replica, stage: int, lane: Lane, places: list[list[int]], pools: Mapping[str, NodePool]
) -> tuple[Fabric, DataParallel]:
    """Return the slowest links among the holders of a stage's layers, and the groups that reduce them."""
    ranges = replica.stages[stage].layers
    copies = [
        (other, place, first)
        for other, row in zip(plan.replicas, places, strict=True)
        for place, first in zip(other.stages, row, strict=True)
        if place.layers == ranges
        or any(low < end and start < high for low, high in place.layers for start, end in ranges)
    ]
    own = lane.context
    if len(plan.replicas) == 1 and {place.gpu for _, place, _ in copies} == {own.pool.gpu.name}:
        return own.links, data_parallel(own, lane.row)
    everyone = [replace(own, pool=pools[place.gpu]).links for _, place, _ in copies]
    links = min(everyone, key=lambda fabric: fabric.inter_bytes_per_second)
    links = replace(
        links,
        intra_bytes_per_second=min(fabric.intra_bytes_per_second for fabric in everyone),
        inter_latency_seconds=max(fabric.inter_latency_seconds for fabric in everyone),
    )
    for link in _slow_pairs(own, {place.gpu for _, place, _ in copies}, pools):
        slower = min(links.inter_bytes_per_second, link.bytes_per_second)
        links = replace(links, inter_bytes_per_second=slower)
    for _, place, _ in copies:
        for rate, delay in _site_link(plan.cluster, own.pool, pools[place.gpu]):
            slower = min(links.inter_bytes_per_second, rate / plan.gpus)
            slowest = max(links.inter_latency_seconds, delay)
            links = replace(links, inter_bytes_per_second=slower, inter_latency_seconds=slowest)
    size = sum(other.count * place.context_parallel for other, place, _ in copies)
    machines: Counter[tuple[str, int]] = Counter()
    for other, place, first in copies:
        stride = sum(one.gpus for one in other.stages if one.gpu == place.gpu) if outermost(plan) else place.gpus
        gpus = first + stride * np.arange(other.count)
        at = gpus // pools[place.gpu].domain_gpus
        if own.links.rack_gpus and place.gpu == own.pool.gpu.name and len(set(gpus // own.links.rack_gpus)) > 1:
            pace = own.links.rack_bytes_per_second / np.clip(stride, own.links.domain_gpus, own.links.rack_gpus)
            links = replace(links, inter_bytes_per_second=min(links.inter_bytes_per_second, float(pace)))
        machines.update((place.gpu, int(machine)) for machine in at for _ in range(place.context_parallel))
    local = min(machines.values())
    dense = Group(size=np.array([size]), local=np.array([max(min(local, size), 1)]))
    width = replica.stages[stage].expert_parallel * replica.stages[stage].expert_tensor_parallel
    ranks = max(size * replica.stages[stage].tensor_parallel // width, 1)
    expert = Group(size=np.array([ranks]), local=np.array([np.clip(own.pool.domain_gpus // width, 1, ranks)]))
    return links, DataParallel(dense=dense, expert=expert)


def _slow_pairs(own: Context, types: set[str], pools: Mapping[str, NodePool]) -> Iterator[LinkTimes]:
    """Yield the measured links from a pool to the other types that hold its layers."""
    for name in sorted(types - {own.pool.gpu.name}):
        link = own.measured.between(own.pool, pools[name]) if own.measured else None
        if link is not None:
            yield link
