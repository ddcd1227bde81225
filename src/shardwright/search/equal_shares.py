"""Data parallelism with equal shares over GPUs of several types, as FSDP2 and DeepSpeed run it: the same micro-batches,
recomputation and part of the state on every GPU, whatever it is. Priced beside the proofs, which have no such plans.

The slowest GPU decides how long passes take and the smallest what fits. So every way to run the plan is costed at once
on each type, as if all GPUs were of it. Of those that fit on all types the ones of each size of micro-batch, sharding
and part in host memory that are quickest on the slowest type are costed on the GPUs there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from itertools import combinations, permutations

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.context import Context
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.strategies import (
    BLOCK,
    NONE,
    SELECTIVE,
    SHARDING,
    UNIFORM,
    UNSHARDED,
    Strategies,
    columns,
    plan_of_row,
)
from shardwright.plans.abilities import flash_attention_runs, gpu_problems
from shardwright.plans.check import check
from shardwright.plans.findings import NotCovered
from shardwright.plans.placement import machine_sizes
from shardwright.plans.plan import Plan
from shardwright.progress import stopped
from shardwright.rounding import coarse
from shardwright.search.kinds import Asked, OneType, largest_pools, of_each_maker
from shardwright.search.mixed.drafts.draft import costed, fitting_seconds
from shardwright.search.mixed.entry import MixedOutcome
from shardwright.search.mixed.restrictions import dropped, keeps_pins
from shardwright.search.objective import affordable_value
from shardwright.search.space.axes import OFFLOADS, divisors, searched, within
from shardwright.spec.catalog.frameworks import framework_has

NUMBERS, LOOKED_AT = 3, 12  # of GPUs that have plans, largest first, and that are looked at for them; chosen
COSTED = 64  # ways that are costed on the GPUs there are, at most; chosen
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # chosen
HARDLY = 0.85  # times its seconds on one type alone: what a plan takes at least; chosen
PARTS = 8  # of the layers, of which some run again; chosen
MOST_TYPES = 4  # of a plan; chosen
DATA_PARALLEL = dict.fromkeys(("tp", "cp", "pp", "ep", "etp", "vpp"), 1)
OVERLAPS = ((True, True), (True, False), (False, False))  # of the gradients' reduction and the weights' gathering
RULE = "ZeRO-3 with equal shares over all machines"


def equal_shares(results: Sequence[OneType], asked: Asked, top: int) -> MixedOutcome | None:
    """Return the best plans of equal shares over several types, and with ZeRO-3 over all of them; None where the job's
    framework has none, or nothing fits."""
    every = largest_pools([result.context for result in results])
    job = every[0].job
    alone = any(value not in asked.space.allowed(axis, (value,)) for axis, value in DATA_PARALLEL.items())
    if not framework_has(job.framework, "equal_shares") or alone or len(every) < 2:
        return None
    plans: dict[tuple[object, ...], Plan] = {}
    longest, looked_at = asked.longest, 0
    for contexts in of_each_maker(every):
        known: Known = {}
        for size in range(len(contexts), 1, -1):
            for some in combinations(contexts, size):
                if size > MOST_TYPES or stopped():
                    continue
                best, ways, longest = _plans(some, asked, known, top, longest)
                looked_at += ways
                for plan in best:
                    plans[(plan.replicas, plan.micro_batch, plan.optimizer)] = costed(some, plan, known)
    valued = [(value, plan) for plan in plans.values() if (value := affordable_value(plan)) is not None]
    valued.sort(key=lambda item: item[0])
    if not valued:
        return None
    whole = [plan for _, plan in valued if len(plan.replicas) == len(every) and plan.optimizer.sharding == "zero3"]
    return MixedOutcome(
        plans=tuple(plan for _, plan in valued[:top]),
        uniform=whole[0] if whole else None,
        uniform_rule=RULE,
        bound=valued[0][0],
        candidates=looked_at,
        costed=len(plans),
        not_covered=(NotCovered.OVER_SEVERAL_TYPES,),
    )


def _plans(
    contexts: Sequence[Context], asked: Asked, known: Known, top: int, longest: float
) -> tuple[list[Plan], int, float]:
    """Return the best plans of up to `longest` seconds with equal shares on all types of `contexts` that pins and rules
    leave and that fit, for each number of GPUs; how many ways were costed for them on one type; and the seconds within
    which further ones are of interest. Where time alone counts, a smaller number is looked at if it may be quicker:
    none is where one is too slow even in one machine."""
    job, total = contexts[0].job, sum(context.pool.gpus for context in contexts)
    numbers = [size for size in divisors(job.global_batch, total) if size >= len(contexts)]
    plans: list[Plan] = []
    had = looked_at = 0
    for number in list(reversed(numbers))[:LOOKED_AT]:
        if had == NUMBERS:
            break
        together = _in_one_machine(contexts, asked, number)
        least, rows = _ways(contexts, asked, number, together=together)
        if _too_slow(least, longest):
            if together or _too_slow(_ways(contexts, asked, number, together=True)[0], longest):
                break
            continue
        best: list[tuple[float, int, Plan]] = []
        for shared in _shared_out(contexts, number) if len(least) else ():
            for place in range(min(len(least), COSTED)):
                if least[place] * HARDLY >= (best[top - 1][0] if len(best) >= top else longest):
                    break
                plan = _over(contexts, asked, rows.take(slice(place, place + 1)), shared)
                seconds = None if plan is None else fitting_seconds(contexts, plan, known)
                if plan is not None and seconds is not None and seconds < longest:
                    best = nsmallest(top, [*best, (seconds, len(best), plan)], key=lambda item: item[:2])
        plans += [plan for _, _, plan in best]
        had, looked_at = had + bool(best), looked_at + len(least) * bool(best)
        if len(best) == top and job.objective == "time" and job.budget_dollars is None:
            longest = best[-1][0]
    return plans, looked_at, longest


def _shared_out(contexts: Sequence[Context], number: int) -> list[Mapping[str, int]]:
    """Return the ways to take a number of GPUs from all types, those of each in turn as long as there are any."""
    by_counts: dict[tuple[int, ...], Mapping[str, int]] = {}
    for order in permutations(contexts):
        left, shared = number - len(order), {}
        for context in order:
            taken = min(left, context.pool.gpus - 1)
            shared[context.pool.gpu.name], left = 1 + taken, left - taken
        counts = {context.pool.gpu.name: shared[context.pool.gpu.name] for context in contexts}
        by_counts[tuple(counts.values())] = counts
    return list(by_counts.values())


def _ways(contexts: Sequence[Context], asked: Asked, number: int, *, together: bool) -> tuple[Floats, Strategies]:
    """Return the ways that fit on all types, as if all `number` GPUs were of one, and `together` in one machine, with
    the seconds that they take on the slowest, quickest first; of those that differ in recomputation and overlap alone
    the quickest."""
    rows, seconds = _all_ways(contexts, asked, number), []

    def nodes(context: Context) -> int:
        return -(-number // context.pool.gpus_per_node)

    for context in contexts:
        alike = _as_if_alone(context, number)
        spread = alike if together else replace(alike, pool=replace(context.pool, mixed=None).resized(nodes(context)))
        kept = within(replace(asked.space, pins=searched(alike, asked.space).pins), rows) & alike.timed(rows)
        kept &= ~asked.filters.mask(alike, rows)
        verdict = evaluate(spread, rows)
        seconds.append(np.where(kept & verdict.fits, coarse(verdict.seconds), np.inf))
    slowest = np.max(seconds, axis=0)
    order = np.argsort(slowest, kind="stable")[: int(np.isfinite(slowest).sum())]
    keys = np.stack([rows.micro_batch, rows.sharding, rows.offload], axis=1)[order]
    order = order[np.sort(np.unique(keys, axis=0, return_index=True)[1])]
    return slowest[order], rows.take(order)


def _too_slow(least: Floats, longest: float) -> bool:
    return len(least) > 0 and bool(least[0] * HARDLY >= longest)


def _in_one_machine(contexts: Sequence[Context], asked: Asked, number: int) -> bool:
    """Return whether so many GPUs may stand in one machine."""
    return asked.cluster.one_machine or any(context.pool.gpus_of_machine >= number for context in contexts)


def _all_ways(contexts: Sequence[Context], asked: Asked, number: int) -> Strategies:
    """Return all ways to run data parallelism on so many GPUs, those pinned among them."""
    job, layers = contexts[0].job, contexts[0].layer_count
    samples = job.global_batch // number
    sizes = {int(size) for size in asked.space.pins.get("micro_batch", MICRO_BATCHES)}
    parts = sorted({-(-layers * part // PARTS) for part in range(1, PARTS + 1)})
    again = [(NONE, 0), (SELECTIVE, 0), (UNIFORM, 1), *((BLOCK, part) for part in parts)]
    again += [(UNIFORM, int(size)) for size in asked.space.pins.get("recompute_layers", ()) if size]
    fused = all(flash_attention_runs(context.pool.gpu, job) for context in contexts)
    axes = ((0, 1) if fused else (0,), sorted(sizes), range(len(SHARDING)), OFFLOADS, range(len(again)), (0, 1, 2))
    flash, size, sharding, offload, repeated, overlap = (
        values.ravel() for values in np.meshgrid(*map(np.asarray, axes), indexing="ij")
    )
    recompute, recompute_layers = np.array(again)[repeated].T
    overlap_grad, overlap_param = np.array(OVERLAPS)[overlap].T
    rows = columns(
        len(flash),
        {
            "dp": np.full(len(flash), number),
            "first_layers": np.full(len(flash), layers),
            "last_layers": np.full(len(flash), layers),
            "flash": flash,
            "micro_batch": size,
            "sharding": sharding,
            "offload": offload,
            "recompute": recompute,
            "recompute_layers": recompute_layers,
            "overlap_grad": overlap_grad,
            "overlap_param": overlap_param,
        },
    )
    return rows.take((samples % size == 0) & ((sharding != UNSHARDED) | ((offload == 0) & ~overlap_param)))


def _as_if_alone(context: Context, number: int) -> Context:
    """Return a context with one machine of so many GPUs of a type, for a job without limits."""
    pool = context.pool
    job = replace(context.job, objective="time", deadline_hours=None, budget_dollars=None)
    machine = replace(
        pool,
        nodes=1,
        gpus_per_node=number,
        domain_gpus=number,
        host_memory_bytes=pool.host_memory_bytes_per_gpu * number,
        host_memory_bytes_per_second=pool.host_memory_bytes_per_second / pool.gpus_per_node * number,
        rack_nodes=0,
        mixed=None,
    )
    return replace(context, pool=machine, job=job, one_machine=False)


def _over(contexts: Sequence[Context], asked: Asked, row: Strategies, shared: Mapping[str, int]) -> Plan | None:
    """Return the plan of a way on GPUs `shared` out by type, None where it is not legal or pins or rules drop it."""
    first = contexts[0]
    plan = plan_of_row(row, first.model, first.job, asked.cluster, first.pool.gpu.name)
    (replica,) = plan.replicas
    (stage,) = replica.stages
    replicas = tuple(
        replace(replica, count=count, stages=(replace(stage, gpu=name),)) for name, count in shared.items()
    )
    plan = replace(plan, replicas=replicas)
    if any(problem for context in contexts for problem in gpu_problems(plan, context.pool)):
        return None
    if check(plan) or not keeps_pins(plan, asked.space) or dropped(plan, contexts, asked.filters):
        return None
    if framework_has(first.job.framework, "machines_alike") and len(set(machine_sizes(plan))) > 1:
        return None
    return plan
