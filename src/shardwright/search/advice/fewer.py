"""The same run on fewer of the machines: what time, dollars and GPUs trade for one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Fewer
from shardwright.spec.cluster import Cluster

SHARES = (0.75, 0.5, 0.25, 0.0)  # of the machines of a group; chosen
MOST_CHOICES = 24  # of machines that are planned for

Planned = Callable[[Cluster], Plan | None]


def fewer_machines(best: Plan, planned: Planned) -> tuple[Fewer, ...]:
    """Return what the run of a plan comes to on fewer of its machines, each choice by the plan that `planned` finds;
    choices without one are left out."""
    counts = tuple(pool.nodes for pool in best.cluster.pools)
    used = {stage.gpu for replica in best.replicas for stage in replica.stages}
    idle = [pool.gpu.name not in used for pool in best.cluster.pools]
    choices = []
    for nodes in fewer_counts(counts):
        if any(count and unused for count, unused in zip(nodes, idle, strict=True)):
            continue
        plan = planned(_part(best.cluster, nodes))
        if plan is not None and plan.prediction is not None:
            choices.append(point(nodes, plan))
    return tuple(choices)


def point(nodes: tuple[int, ...], plan: Plan) -> Fewer:
    """Return a costed plan on so many machines of each group as a point of time, dollars and GPUs."""
    prediction = plan.prediction
    assert prediction is not None, "the plan is costed"
    return Fewer(
        nodes=nodes,
        gpus=plan.gpus,
        iteration_seconds=prediction.iteration_seconds,
        hours=prediction.hours_total,
        dollars=prediction.dollars_total,
    )


def fewer_counts(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield machines of each group, fewer than `counts` and the larger choices first: shares of all groups alike, then
    of each group with all of the others, then of each group alone."""
    together = [(share,) * len(counts) for share in SHARES]
    places = list(product(range(len(counts)), SHARES))
    others = [tuple(share if place == group else 1.0 for place in range(len(counts))) for group, share in places]
    alone = [
        tuple(share if place == group else 0.0 for place in range(len(counts)))
        for group, share in product(range(len(counts)), (1.0, *SHARES))
    ]
    seen = {tuple(counts)}
    for shares in (*together, *others, *alone):
        nodes = tuple(round(share * count) for share, count in zip(shares, counts, strict=True))
        if any(nodes) and nodes not in seen and len(seen) <= MOST_CHOICES:
            seen.add(nodes)
            yield nodes


def _part(cluster: Cluster, nodes: Sequence[int]) -> Cluster:
    """Return so many machines of each group of a cluster, which keep the links between sites that are left."""
    pools = tuple(pool.resized(count) for pool, count in zip(cluster.pools, nodes, strict=True) if count)
    sites = {pool.site for pool in pools}
    return replace(
        cluster, pools=pools, site_links=tuple(link for link in cluster.site_links if sites >= {*link.sites})
    )
