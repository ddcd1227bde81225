"""Links of a mixed plan: between neighbouring stages, and among all holders of a layer, within a site and across.

A collective of NCCL is a ring in the order of the ranks, so of the sites. A rank waits for its neighbour alone, and
what it sends passes every link once: the delays of a ring add up along it, however many ranks it has (the latency that
NCCL itself expects, `src/graph/tuning.cc`, is a sum over the steps of this kind). One collective of a communicator
begins when the one before it is over, so each pays them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.context import Context
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.places import Places
from shardwright.cost.memory.sizes import trained_share
from shardwright.cost.network.collectives import Fabric, Group, gather_seconds, rack_seconds, transfer_seconds
from shardwright.plans.mesh import is_mesh
from shardwright.plans.placement import STAGES_TOGETHER, machine_numbers
from shardwright.plans.plan import Plan, Replica
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.cluster import Cluster, NodePool

if TYPE_CHECKING:
    from shardwright.cost.network.curves import LinkTimes

Contexts = Mapping[str, Context]  # by GPU type


def move_seconds(plan: Plan, places: Places, contexts: Contexts, part_bytes: Floats) -> Floats:
    """Return the seconds of a message from each stage to the next one of its replica (the last: to the first), [S];
    `part_bytes` [S] is what a GPU of the stage has of the activation of a micro-batch."""
    there, seconds = places.after, np.zeros(len(places.kind))
    sent = _sent_bytes(plan, part_bytes, places.tp, places.tp[there])
    received = _sent_bytes(plan, part_bytes[there], places.tp[there], places.tp)
    senders = (1 if plan.rank_order == STAGES_TOGETHER else places.count) * places.size
    first = places.first
    same, several = places.kind == places.kind[there], there != np.arange(len(there))
    for kind, name in enumerate(places.types):
        rows = np.flatnonzero(same & several & (places.kind == kind))
        links, size = contexts[name].links, np.maximum(sent, received)[rows]
        ends = first[rows], first[there[rows]]
        seconds[rows] = transfer_seconds(links, size, ends[0] // links.domain_gpus != ends[1] // links.domain_gpus)
        if links.rack_gpus:
            leaves = ends[0] // links.rack_gpus != ends[1] // links.rack_gpus
            seconds[rows] = np.maximum(seconds[rows], leaves * rack_seconds(links, size, senders[rows]))
    inside = _next_inside(plan, places)
    for row in np.flatnonzero(~same).tolist():
        pair = contexts[places.types[places.kind[row]]], contexts[places.types[places.kind[there[row]]]]
        parts = float(sent[row]), float(received[row])
        if inside[row]:
            seconds[row] = _crossing_seconds([context.inside for context in pair], parts)
            continue
        ranks = int(min(places.size[row], places.size[there[row]]))
        seconds[row] = _between_seconds(plan, *pair, *parts, ranks)
    return seconds


def _next_inside(plan: Plan, places: Places) -> Bools:
    """Return whether every copy of a stage stands in one machine with its next stage, of another type, [S]."""
    stages = len(places.kind)
    if not plan.cluster.mixed:
        return np.zeros(stages, dtype=bool)
    ends = places.placement.begin[:, None] + np.array([0, 1]) * (places.size * places.count)[:, None]
    machines = machine_numbers(plan, places.placement)
    copies = [machines[begin:end].reshape(-1, size) for (begin, end), size in zip(ends, places.size, strict=True)]
    return np.array(
        [
            bool((here == here[:, :1]).all() and (copies[after] == here[:, :1]).all())
            for here, after in zip(copies, places.after.tolist(), strict=True)
        ]
    )


def _holders_inside(plan: Plan, places: Places) -> Bools:
    """Return whether all holders of a stage's layers stand in one machine with GPUs of several types, [S]."""
    if not plan.cluster.mixed:
        return np.zeros(len(places.kind), dtype=bool)
    machines, begin = machine_numbers(plan, places.placement), places.placement.begin
    least, most = np.minimum.reduceat(machines, begin), np.maximum.reduceat(machines, begin)
    low = np.where(places.shared, least, machines.max()).min(axis=1)
    high = np.where(places.shared, most, 0).max(axis=1)
    types = [len(set(places.kind[row].tolist())) for row in places.shared]
    return np.asarray((low == high) & (np.array(types) > 1))


def _crossing_seconds(links: Sequence[Fabric | None], parts: tuple[float, float]) -> float:
    """Return the seconds of a message that leaves a domain, of so many bytes at either end: the slower end decides."""
    return max(
        float(transfer_seconds(end, np.array([part]), np.array([True]))[0])
        for end, part in zip(links, parts, strict=True)
        if end is not None
    )


def _sent_bytes(plan: Plan, part_bytes: Floats, mine: Ints, theirs: Ints) -> Floats:
    """Return the bytes that a GPU of a stage of degree `mine` sends to or receives from one of degree `theirs` for one
    micro-batch: its part of the activation. Where degrees differ and all ranks have all positions, each receiving rank
    is sent the whole."""
    return np.where(plan.sequence_parallel | (mine == theirs), part_bytes, part_bytes * mine * -(-theirs // mine))


def _between_seconds(plan: Plan, first: Context, other: Context, sent: float, received: float, ranks: int) -> float:
    """Return the seconds of a message between GPUs of two types. The side with fewer ranks sends or receives more on
    each; `ranks` of a pipeline talk over the link between sites at a time."""
    both = [_crossing_seconds([first.links, other.links], (sent, received))]
    size = max(sent, received)
    both += [float(link.messages.of(np.array(size))) for link in _measured_between(first, other)]
    both += [
        size * _messages_between(plan, first.pool, other.pool) * ranks / rate + delay
        for rate, delay in site_link(plan.cluster, first.pool.site, other.pool.site)
    ]
    return max(both)


def _measured_between(first: Context, other: Context) -> Iterator[LinkTimes]:
    """Yield the link between machines of two types as a GPU of either finds it, where it was measured."""
    for here, there in ((first, other), (other, first)):
        link = here.source.between(here.pool, there.pool)
        if link is not None:
            yield link


def _messages_between(plan: Plan, first: NodePool, other: NodePool) -> int:
    """Return how many messages share the link between the sites of two pools: one for each time that a pipeline goes
    there or back, since the backward passes of a way back take the direction of the forward passes there."""
    sites = plan.cluster.sites
    ends = {first.site, other.site}
    return sum(
        replica.count * sum({sites[a.gpu], sites[b.gpu]} == ends for a, b in pairwise(replica.stages))
        for replica in plan.replicas
    )


def once_seconds(plan: Plan, places: Places, contexts: Contexts, dense: Floats, expert: Floats) -> Floats:
    """Return the seconds in which all holders of a stage's layers gather a byte of each of its parameters, `dense` and
    `expert` [S], over the slowest links among them, [S]. What they wait for the way between sites is in `ring_delays`.

    Holders of unequal tensor-parallel degrees cut a layer into as many shards as the least common multiple of these.
    A rank of degree t holds lcm / t of them, each reduced in a ring of its own with an equal part of its links, and a
    ring runs at the pace of its slowest rank: a stage of degree t' sees a holder at t / t' of its rates.
    """
    domain_gpus = np.array([contexts[name].pool.domain_gpus for name in places.types])[places.kind]
    size = places.shared @ (places.count * places.cp)
    local = np.minimum(_least_in_a_domain(places, domain_gpus), size)
    width = places.ep * places.etp
    ranks = np.maximum(size * places.tp // width, 1)
    inside = np.clip(local * places.tp // width, 1, ranks)
    seconds = np.empty(len(places.kind))
    for links, at in _by_links(plan, places, contexts, np.ceil(size / local)).items():
        rows = np.array(at)
        seconds[rows] = gather_seconds(links, Group(size=size[rows], local=local[rows]), dense[rows])
        if expert.any():
            seconds[rows] += gather_seconds(links, Group(size=ranks[rows], local=inside[rows]), expert[rows])
    return seconds


def holder_links(plan: Plan, places: Places, contexts: Contexts) -> tuple[tuple[Fabric, Group], ...]:
    """Return the links among all GPUs of a plan whose stages have all layers, as each GPU type finds them."""
    domain_gpus = np.array([contexts[name].pool.domain_gpus for name in places.types])[places.kind]
    local = np.minimum(_least_in_a_domain(places, domain_gpus), plan.gpus)
    size = np.array([plan.gpus])
    return tuple(
        (links, Group(size=size, local=local[at].min(keepdims=True)))
        for links, at in _by_links(plan, places, contexts, np.ceil(plan.gpus / local)).items()
    )


def _least_in_a_domain(places: Places, domain_gpus: Ints) -> Ints:
    """Return how many ranks the domain with fewest of them has, among those with holders of a stage's layers, [S]."""
    stages = len(places.kind)
    owner, first = places.placement.first_of_groups(places.tp)
    domain = first // domain_gpus[owner]
    _, which = np.unique(places.kind[owner] * (domain.max() + 1) + domain, return_inverse=True)
    width = int(which.max()) + 1
    ranks = np.bincount(owner * width + which, minlength=stages * width).reshape(stages, width)
    there = places.shared @ ranks
    return np.asarray(np.where(there > 0, there, np.iinfo(np.int64).max).min(axis=1))


def _by_links(plan: Plan, places: Places, contexts: Contexts, domains: Floats) -> dict[Fabric, list[int]]:
    """Return the slowest links among the holders of layers, which are in so many `domains` [S], with the stages whose
    layers they hold."""
    pairs = [(places.types[kind], tp) for kind, tp in zip(places.kind.tolist(), places.tp.tolist(), strict=True)]
    inside = _holders_inside(plan, places).tolist()
    known: dict[tuple[object, ...], Fabric] = {}
    stages_of: dict[Fabric, list[int]] = {}
    for stage, row in enumerate(places.shared):
        holders = tuple(dict.fromkeys(pairs[other] for other in row.nonzero()[0].tolist()))
        key = pairs[stage], holders, float(domains[stage]), inside[stage]
        if key not in known:
            known[key] = _slowest_links(plan, contexts, *key)
        links, within = known[key], contexts[pairs[stage][0]].links
        if within.rack_gpus:
            pace = _rack_pace(places, within, stage)
            links = replace(links, inter_bytes_per_second=min(links.inter_bytes_per_second, pace))
        stages_of.setdefault(links, []).append(stage)
    return stages_of


def _slowest_links(
    plan: Plan,
    contexts: Contexts,
    stage: tuple[str, int],
    holders: tuple[tuple[str, int], ...],
    domains: float,
    inside: bool,
) -> Fabric:
    """Return the links at the pace of the slowest of `holders`, which may all be `inside` a machine; a stage and
    holders are (GPU type, degree).

    A ring through all `domains` crosses between two sites once each way, and each GPU of a domain is on a ring of its
    own: so many rings share the link between sites.
    """
    home, degree = contexts[stage[0]], stage[1]
    links = {name: context.inside if inside and context.inside else context.links for name, context in contexts.items()}
    everyone = [_paced(links[name], tp / degree) for name, tp in holders]
    paces = [fabric.inter_bytes_per_second for fabric in everyone]
    if not inside:
        paces += [link.bytes_per_second for link in _slow_pairs(home, {name for name, _ in holders}, contexts)]
    for name, tp in holders:
        for rate, _ in site_link(plan.cluster, home.pool.site, contexts[name].pool.site):
            paces.append(rate * domains / plan.gpus * min(tp / degree, 1.0))
    return replace(
        links[stage[0]],
        intra_bytes_per_second=min(fabric.intra_bytes_per_second for fabric in everyone),
        inter_bytes_per_second=min(paces),
        inter_latency_seconds=max(fabric.inter_latency_seconds for fabric in everyone),
    )


def _paced(links: Fabric, share: float) -> Fabric:
    """Return links of which a ring has a part (or, of a rank with fewer rings, a multiple)."""
    inside, between = links.intra_bytes_per_second * share, links.inter_bytes_per_second * share
    return replace(links, intra_bytes_per_second=inside, inter_bytes_per_second=between)


def _rack_pace(places: Places, links: Fabric, stage: int) -> float:
    """Return the bytes per second that leave a rack for each GPU of the holders of the stage's own type that stand in
    several racks; infinite where there are none."""
    first, last = places.first, places.last
    spread = first // links.rack_gpus != last // links.rack_gpus
    stride = (last - first) // np.maximum(places.count - 1, 1)
    slow = places.shared[stage] & (places.kind == places.kind[stage]) & spread
    pace = links.rack_bytes_per_second / np.clip(stride, links.domain_gpus, links.rack_gpus)
    return float((pace * places.tp / places.tp[stage])[slow].min(initial=np.inf))


def _slow_pairs(context: Context, types: set[str], contexts: Contexts) -> Iterator[LinkTimes]:
    """Yield the measured links from a pool to the other types that hold its layers."""
    for name in sorted(types - {context.pool.gpu.name}):
        link = context.source.between(context.pool, contexts[name].pool)
        if link is not None:
            yield link


def site_link(cluster: Cluster, one: str, other: str) -> Iterator[tuple[float, float]]:
    """Yield bandwidth and latency of the link between two sites, if they are different ones."""
    for link in cluster.site_links:
        if one != other and set(link.sites) == {one, other}:
            yield link.bytes_per_second, link.latency_seconds


def ring_delays(plan: Plan, places: Places) -> Floats:
    """Return the seconds that a ring through all holders of a stage's layers waits between sites, [S]."""
    sites = _sites(plan, places)
    if len(set(sites)) < 2:
        return np.zeros(len(places.kind))
    ranks = places.shared @ (places.count * places.cp)
    there = (places.shared @ (places.kind[:, None] == np.arange(len(sites)))) > 0
    alike, of = np.unique(np.column_stack([there, ranks]), axis=0, return_inverse=True)
    rings = [([sites[kind] for kind in np.flatnonzero(row[:-1])], int(row[-1])) for row in alike]
    return np.array([_ring_delay(plan.cluster, *ring) for ring in rings])[of.ravel()]


def _ring_delay(cluster: Cluster, sites: Sequence[str], ranks: int) -> float:
    """Return the delays on the way of what travels farthest: over all links of the ring but one."""
    around = [delay for pair in pairwise([*sites, sites[0]]) for _, delay in site_link(cluster, *pair)]
    return sum(around) - (min(around, default=0.0) if len(around) == ranks else 0.0)


def unit_delays(plan: Plan, places: Places) -> Floats:
    """Return the seconds that one collective for each unit of a stage, one after the other, waits between sites, [S];
    those of experts have communicators of their own and wait at the same time."""
    layers = (places.end - places.begin).sum(axis=1)
    ends = (places.begin == 0).any(axis=1).astype(int) + (places.end == len(plan.model.layers)).any(axis=1)
    return np.asarray(ring_delays(plan, places) * (layers + ends))


def agreement_delay(plan: Plan, places: Places) -> float:
    """Return the seconds that a number which all GPUs add up waits between sites: there and back, as in a tree."""
    pairs = combinations(sorted(set(_sites(plan, places))), 2)
    return 2.0 * max((delay for pair in pairs for _, delay in site_link(plan.cluster, *pair)), default=0.0)


def tied_bytes_between(plan: Plan) -> dict[frozenset[str], float]:
    """Return the bytes that a tied embedding sends each way between two sites where pipelines begin at one and end at
    the other: Megatron-LM adds up the gradients of both ends pipeline by pipeline, `train` those of all in one ring,
    with the weights."""
    sites, pipelines = plan.cluster.sites, Counter[frozenset[str]]()
    for replica in plan.replicas if plan.model.tied_embeddings else ():
        pipelines[frozenset((sites[replica.stages[0].gpu], sites[replica.stages[-1].gpu]))] += replica.count
    widths, moved = widths_of(plan.job), trained_share(plan.model, plan.job) * plan.model.token_table_parameters
    one_by_one = plan.job.framework != OWN and is_mesh(plan)
    ring = (widths.gradient_reduction + widths.weight_gather) * (1.0 - 0.5 / plan.data_parallel)
    return {
        pair: moved * (widths.gradient_reduction * count if one_by_one else ring)
        for pair, count in pipelines.items()
        if len(pair) > 1
    }


def tied_seconds_between(plan: Plan, replica: Replica) -> float:
    """Return the seconds of a tied embedding on the link between the sites of a replica's first and last stage."""
    sites = plan.cluster.sites
    ends = sites[replica.stages[0].gpu], sites[replica.stages[-1].gpu]
    size = tied_bytes_between(plan).get(frozenset(ends))
    return 0.0 if size is None else sum(size / rate + 2.0 * delay for rate, delay in site_link(plan.cluster, *ends))


def _sites(plan: Plan, places: Places) -> list[str]:
    """Return the site of each of the plan's GPU types."""
    return [plan.cluster.sites[name] for name in places.types]
