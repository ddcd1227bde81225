"""Batch sizes and numbers of machines nearby that pay: where all GPUs are equal, a plan has as many replicas as divide
the batch, and GPUs that no such number puts to good use stay idle or are spread over longer pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import gcd

from shardwright.plans.check import check
from shardwright.plans.plan import OptimizerPlan, Plan
from shardwright.plans.ranking import Nearby
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job

FARTHEST = 0.15  # of the batch; chosen
FEWEST_MACHINES, MOST_MACHINES = 0.75, 1.25  # of the cluster; chosen
WORTH = 0.02  # gain in tokens per second and GPU that is worth a word; chosen

Search = Callable[[Cluster, Job], Plan | None]
Costed = Callable[[Plan], Plan]


def nearby(best: Plan, search: Search, costed: Costed) -> tuple[Nearby, ...]:
    """Return what pays of other batches and other numbers of machines, and the same batch shared out unequally, which
    `train` alone can run. `search` finds the best plan for machines and a job, `costed` prices one."""
    job, cluster = best.job, best.cluster
    if len(cluster.pools) != 1 or best.prediction is None or not best.uniform:
        return ()
    others = [replace(job, global_batch=batch) for batch in _batches(job.global_batch, cluster.gpus)]
    found = [plan for other in others if (plan := search(cluster, other)) is not None]
    sized = [plan for other in _clusters(cluster, job.global_batch) if (plan := search(other, job)) is not None]
    shared = [costed(plan) for plan in _shared(best, found)] if job.framework != "train" else []
    rows = [_row(best, plan) for plan in (*found, *_fastest(shared), *sized)]
    return tuple(row for row in rows if row.gain >= WORTH)


def _row(best: Plan, plan: Plan) -> Nearby:
    mine, other = best.prediction, plan.prediction
    assert mine is not None and other is not None, "both are costed"
    each = other.tokens_per_second / plan.cluster.gpus, mine.tokens_per_second / best.cluster.gpus
    return Nearby(
        global_batch=plan.job.global_batch,
        gpus=plan.cluster.gpus,
        tokens_per_second=other.tokens_per_second,
        gain=each[0] / each[1] - 1.0,
        shares=tuple(sorted({replica.micro_batches for replica in plan.replicas})) if not plan.uniform else (),
    )


def _batches(batch: int, gpus: int) -> Iterator[int]:
    """Yield the batch below and the one above that the most replicas on all GPUs can share, the nearest of these."""
    own = gcd(batch, gpus)
    for places in (
        range(batch - 1, int(batch * (1.0 - FARTHEST)), -1),
        range(batch + 1, int(batch * (1.0 + FARTHEST))),
    ):
        best = max(places, key=lambda size: gcd(size, gpus), default=batch)
        if gcd(best, gpus) > own:
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
            yield replace(cluster, pools=(replace(pool, nodes=best),))


def _shared(best: Plan, models: Sequence[Plan]) -> Iterator[Plan]:
    """Yield plans for the batch of `best` with the replicas of those for other batches, the last of them with a
    micro-batch less."""
    for plan in models:
        total, rest = divmod(best.job.global_batch, plan.micro_batch)
        copies, (replica,) = plan.data_parallel, plan.replicas
        each, more = divmod(total, copies)
        if rest or not each or not more:
            continue
        shares = ((more, each + 1), (copies - more, each))
        replicas = tuple(replace(replica, count=count, micro_batches=size) for count, size in shares)
        overlap = replace(plan.overlap, tensor_parallel=False, pipeline=False)
        shared = replace(
            plan,
            job=replace(best.job, framework="train"),
            replicas=replicas,
            optimizer=OptimizerPlan(sharding="zero1" if plan.optimizer.distributed else "none"),
            overlap=overlap,
            prediction=None,
        )
        if not check(shared):
            yield shared


def _fastest(plans: Sequence[Plan]) -> list[Plan]:
    """Return the fastest of some plans that are likely to fit, if there is one."""
    fitting = [
        (found.iteration_seconds, place)
        for place, plan in enumerate(plans)
        if (found := plan.prediction) is not None and found.fit_probability >= 0.9
    ]
    return [plans[min(fitting)[1]]] if fitting else []
