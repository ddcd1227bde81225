"""Replicas of one shape with unequal numbers of micro-batches, experts or sequences spread over them, on GPUs of one
type whose number does not divide the batch: priced beside the proof, which has no such replicas.

A step takes about what it takes if every replica has as many micro-batches as the busiest. So the search for equal
replicas is asked for the least batches above the job's that all GPUs share evenly, and its best layouts are given the
job's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.strategies import UNSHARDED, ZERO1, Strategies, plan_of_row, values_of
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.progress import stopped
from shardwright.search.mixed.drafts.draft import costed, fitting_seconds
from shardwright.search.mixed.restrictions import dropped, keeps_pins
from shardwright.search.mixed.tables.settings import FEWEST_TOKENS
from shardwright.search.objective import Objective
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, divisors, searched
from shardwright.search.uniform.search import search
from shardwright.spec.cluster import Cluster

BATCHES, LAYOUTS = 3, 4  # that are searched, and the best of each that are given the job's own; chosen


def unequal_counts(
    context: Context, cluster: Cluster, space: Space, filters: Filters, longest: float
) -> tuple[Plan, ...]:
    """Return the fastest such plan with its prediction, if there is one of less than `longest` seconds."""
    if "dp" in space.pins or not _spreads(context):
        return ()
    known: Known = {}
    best: tuple[float, Plan] | None = None
    for row in _layouts(context, space, filters, longest):
        for plan in _plans(context, cluster, row):
            if check(plan) or not keeps_pins(plan, space) or dropped(plan, [context], filters):
                continue
            seconds = fitting_seconds([context], plan, known)
            if seconds is not None and seconds < (longest if best is None else best[0]):
                best = seconds, plan
    return () if best is None else (costed([context], best[1], known),)


def _spreads(context: Context) -> bool:
    """Return whether experts or context are spread at all: the others are among the pipelines of the proof."""
    experts = any(kind.moe is not None for kind in context.model.kinds)
    return experts or context.job.seq_len >= 2 * FEWEST_TOKENS


def _layouts(context: Context, space: Space, filters: Filters, longest: float) -> Iterator[Strategies]:
    """Yield the best layouts on all GPUs for some batches, those first of which most replicas have a share."""
    gpus, batch = context.pool.gpus, context.job.global_batch
    usual = {"gpus": (gpus,), "vpp": (1,), "sharding": (UNSHARDED, ZERO1), "offload": (0.0,)}
    within = replace(space, pins={**space.pins, **{axis: space.allowed(axis, some) for axis, some in usual.items()}})
    copies = reversed(divisors(gpus, min(gpus, batch)))
    larger = [size for size in dict.fromkeys(-(-batch // count) * count for count in copies) if size > batch]
    for size in larger[:BATCHES]:
        if stopped() or not all(within.pins.values()):
            return
        asked = replace(context, job=replace(context.job, global_batch=size))
        objective = Objective(model=asked.model, job=asked.job, pool=asked.pool, longest=longest)
        yield from (row for _, row in search(asked, searched(asked, within), filters, objective, top=LAYOUTS).ranked)


def _plans(context: Context, cluster: Cluster, row: Strategies) -> Iterator[Plan]:
    value = values_of(row)
    micro_batches, odd = divmod(context.job.global_batch, value["micro_batch"])
    if odd or value["ep"] * value["cp"] == 1:
        return
    plan = plan_of_row(row, context.model, context.job, cluster, context.pool.gpu.name)
    (replica,) = plan.replicas
    whole = value["ep"] * value["etp"]  # ranks over which the experts of equal replicas are spread
    for parts in shares(micro_batches, value["dp"], whole // gcd(whole, value["tp"] * value["cp"])):
        replicas = tuple(replace(replica, count=count, micro_batches=passes) for count, passes in parts)
        yield replace(plan, replicas=replicas)


def shares(total: int, copies: int, step: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield how two groups of copies, in multiples of `step` and `copies` in all, share `total` micro-batches: (copies,
    micro-batches of each), where those of the first group are the fewest that the busiest can have, and more than
    those of the second."""
    most = -(-total // copies)
    for first in range(step, copies, step):
        second, rest = copies - first, total - first * most
        if second % step == 0 and rest > 0 and rest % second == 0 and rest // second < most:
            yield (first, most), (second, rest // second)
