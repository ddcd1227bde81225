"""Questions nearby: other batches and numbers of machines that pay, and the same run on fewer of the machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import gcd

from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Fewer, Nearby
from shardwright.plans.trainer_options import as_own, beyond_own
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job

FARTHEST = 0.15  # of the batch; chosen
FEWEST_MACHINES, MOST_MACHINES = 0.75, 1.25  # of the cluster; chosen
WORTH = 0.02  # gain in tokens per second and GPU that is worth a word; chosen

Search = Callable[[Cluster, Job, float], Plan | None]
SHARES = (0.75, 0.5, 0.25, 0.0)  # of the machines of a group; chosen
MOST_CHOICES = 24  # of machines that are planned for

Planned = Callable[[Cluster], Plan | None]


def nearby(best: Plan, search: Search) -> tuple[Nearby, ...]:
    """Return what pays of other batches, of unequal replicas for the same batch, which `train` alone can run, and of
    other numbers of machines. `search` finds the best plan for machines and a job of at most so many seconds."""
    job, cluster = best.job, best.cluster
    if len(cluster.pools) != 1 or best.prediction is None:
        return ()
    batches = [(cluster, replace(job, global_batch=batch)) for batch in _batches(job.global_batch, cluster.gpus)]
    able = batches and job.framework != OWN and not beyond_own(job)
    unequal = [(cluster, as_own(job))] if able else []
    sized = [(other, job) for other in _clusters(cluster, job.global_batch)]
    rate = best.prediction.tokens_per_second / cluster.gpus * (1.0 + WORTH)
    outcomes = [
        search(machines, task, float(task.tokens_per_iteration / (rate * machines.gpus)))
        for machines, task in (*batches, *unequal, *sized)
    ]
    rows = [_row(best, plan) for plan in outcomes if plan is not None and _new(best, plan)]
    return tuple(row for row in rows if row.gain >= WORTH)


def _new(best: Plan, plan: Plan) -> bool:
    """Return whether a plan is of what was asked for: priced as another framework runs it only where it is unequal."""
    return plan.job.framework == best.job.framework or not plan.uniform


def _row(best: Plan, plan: Plan) -> Nearby:
    mine, other = best.predicted, plan.predicted
    by_train = plan.job.framework != best.job.framework
    rates = other.tokens_per_second / plan.cluster.gpus, mine.tokens_per_second / best.cluster.gpus
    return Nearby(
        global_batch=plan.job.global_batch,
        gpus=plan.cluster.gpus,
        tokens_per_second=other.tokens_per_second,
        gain=rates[0] / rates[1] - 1.0,
        shares=tuple(sorted({replica.micro_batches for replica in plan.replicas})) if by_train else (),
    )


def _batches(batch: int, gpus: int) -> Iterator[int]:
    """Yield the batch below and the one above that the most replicas on all GPUs can share, the nearest of these."""
    divisor = gcd(batch, gpus)
    for places in (
        range(batch - 1, int(batch * (1.0 - FARTHEST)), -1),
        range(batch + 1, int(batch * (1.0 + FARTHEST))),
    ):
        best = max(places, key=lambda size: gcd(size, gpus), default=batch)
        if gcd(best, gpus) > divisor:
            yield best


def _clusters(cluster: Cluster, batch: int) -> Iterator[Cluster]:
    """Yield the cluster with fewer and with more machines, of which replicas can share out most evenly."""
    (pool,) = cluster.pools
    nodes = pool.nodes

    def longest(count: int) -> float:
        return count * pool.gpus_per_node / gcd(batch, count * pool.gpus_per_node)

    fewer = range(nodes - 1, max(int(FEWEST_MACHINES * nodes), 1) - 1, -1)
    for counts in (fewer, range(nodes + 1, int(MOST_MACHINES * nodes) + 1)):
        best = min(counts, key=longest, default=nodes)
        if longest(best) < longest(nodes):
            yield replace(cluster, pools=(pool.resized(best),))


def fewer_machines(best: Plan, planned: Planned) -> tuple[Fewer, ...]:
    """Return what the run of a plan comes to on fewer of its machines, each choice by the plan that `planned` finds;
    choices without one are left out."""
    counts = tuple(pool.nodes for pool in best.cluster.pools)
    used = {stage.gpu for stage in best.stages}
    idle = [pool.gpu.name not in used for pool in best.cluster.pools]
    choices = []
    for nodes in fewer_counts(counts):
        if any(count and unused for count, unused in zip(nodes, idle, strict=True)):
            continue
        machines = {(pool.machines, count) for pool, count in zip(best.cluster.pools, nodes, strict=True)}
        if len(machines) > len({pool.machines for pool in best.cluster.pools}):
            continue  # machines are there with the GPUs of all their types, or not at all
        plan = planned(_part(best.cluster, nodes))
        if plan is not None and plan.prediction is not None:
            choices.append(point(nodes, plan))
    return tuple(choices)


def point(nodes: tuple[int, ...], plan: Plan) -> Fewer:
    """Return a costed plan on so many machines of each group as a point of time, dollars and GPUs."""
    prediction = plan.predicted
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
    """Return so many machines of each group of a cluster."""
    return cluster.of(tuple(pool.resized(count) for pool, count in zip(cluster.pools, nodes, strict=True) if count))
