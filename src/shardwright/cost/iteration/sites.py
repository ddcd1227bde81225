"""What collectives wait for the links between sites, and what a tied embedding sends over them.

A collective of NCCL is a ring in the order of the ranks, so of the sites. A rank waits for its neighbour alone, and
what it sends passes every link once: the delays of a ring add up along it, however many ranks it has (the latency that
NCCL itself expects, `src/graph/tuning.cc`, is a sum over the steps of this kind). One collective of a communicator
begins when the one before it is over, so each pays them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.places import Places
from shardwright.cost.memory.sizes import trained_share
from shardwright.plans.mesh import is_mesh
from shardwright.plans.plan import Plan, Replica
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.cluster import Cluster


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
    of, pipelines = {pool.gpu.name: pool.site for pool in plan.cluster.pools}, Counter[frozenset[str]]()
    for replica in plan.replicas if plan.model.tied_embeddings else ():
        pipelines[frozenset((of[replica.stages[0].gpu], of[replica.stages[-1].gpu]))] += replica.count
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
    of = {pool.gpu.name: pool.site for pool in plan.cluster.pools}
    ends = of[replica.stages[0].gpu], of[replica.stages[-1].gpu]
    size = tied_bytes_between(plan).get(frozenset(ends))
    return 0.0 if size is None else sum(size / rate + 2.0 * delay for rate, delay in site_link(plan.cluster, *ends))


def _sites(plan: Plan, places: Places) -> list[str]:
    """Return the site of each of the plan's GPU types."""
    of = {pool.gpu.name: pool.site for pool in plan.cluster.pools}
    return [of[name] for name in places.types]
