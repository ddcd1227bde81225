"""Data parallelism with equal shares over GPUs of several types, as FSDP2 and DeepSpeed run it: the same micro-batches,
recomputation and part of the state on every GPU, whatever it is. Priced beside the proofs, which have no such plans.

The slowest GPU decides how long passes take and the smallest what fits. So each type of a set is asked, as if all GPUs
of the plan were of it, for its best way with each sharding, and what any of them answers is costed on the GPUs there
are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.strategies import SHARDING, Strategies, plan_of_row, values_of
from shardwright.plans.check import check
from shardwright.plans.findings import NotCovered
from shardwright.plans.placement import machine_sizes
from shardwright.plans.plan import Plan
from shardwright.progress import stopped
from shardwright.search.kinds import Asked, OneType, largest_pools, of_each_maker
from shardwright.search.mixed.drafts.draft import costed, fitting_seconds
from shardwright.search.mixed.entry import MixedOutcome
from shardwright.search.mixed.restrictions import dropped, keeps_pins
from shardwright.search.objective import Objective, affordable_value
from shardwright.search.space.axes import divisors, searched
from shardwright.search.uniform.search import search

FRAMEWORKS = ("fsdp", "deepspeed")
AS_MANY_ON_EACH = ("fsdp",)  # accelerate/commands/launch.py: num_processes over num_machines
NUMBERS, LOOKED_AT = 3, 12  # of GPUs that have plans, largest first, and that are looked at for them; chosen
WAYS = 8  # that a type is asked for with each sharding; chosen
MOST_TYPES = 4  # of a plan; chosen
DATA_PARALLEL = dict.fromkeys(("tp", "cp", "pp", "ep", "etp", "vpp"), 1)
RULE = "ZeRO-3 with equal shares over all machines"


def equal_shares(results: Sequence[OneType], asked: Asked, top: int) -> MixedOutcome | None:
    """Return the best plans of equal shares over several types, and with ZeRO-3 over all of them; None where the job's
    framework has none, or nothing fits."""
    every = largest_pools([result.context for result in results])
    job = every[0].job
    alone = any(value not in asked.space.allowed(axis, (value,)) for axis, value in DATA_PARALLEL.items())
    if job.framework not in FRAMEWORKS or alone or len(every) < 2:
        return None
    found: dict[tuple[object, ...], Plan] = {}
    looked_at = 0
    for contexts in of_each_maker(every):
        known: Known = {}
        for size in range(len(contexts), 1, -1):
            for some in combinations(contexts, size):
                if size > MOST_TYPES or stopped():
                    continue
                for plan in _plans(some, asked):
                    looked_at += 1
                    if (fitting_seconds(some, plan, known) or np.inf) < asked.longest:
                        found[(plan.replicas, plan.micro_batch, plan.optimizer)] = costed(some, plan, known)
    valued = [(value, plan) for plan in found.values() if (value := affordable_value(plan)) is not None]
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
        costed=len(found),
        not_covered=(NotCovered.MODEL_PARALLEL_OVER_TYPES,),
    )


def _plans(contexts: Sequence[Context], asked: Asked) -> Iterator[Plan]:
    """Yield the plans of equal shares on all types of `contexts` that pins and rules leave."""
    job, total = contexts[0].job, sum(context.pool.gpus for context in contexts)
    numbers = [size for size in divisors(job.global_batch, total) if size >= len(contexts)]
    had = 0
    for number in list(reversed(numbers))[:LOOKED_AT]:
        if had == NUMBERS:
            return
        before, rows = had, _ways(contexts, asked, number)
        for shared in _shared_out(contexts, number):
            for row in rows:
                plan = _over(contexts, asked, row, shared)
                if plan is not None:
                    had = before + 1
                    yield plan


def _shared_out(contexts: Sequence[Context], number: int) -> list[Mapping[str, int]]:
    """Return the ways to take a number of GPUs from all types, those of each in turn as long as there are any."""
    found: dict[tuple[int, ...], Mapping[str, int]] = {}
    for order in permutations(contexts):
        left, shared = number - len(order), {}
        for context in order:
            taken = min(left, context.pool.gpus - 1)
            shared[context.pool.gpu.name], left = 1 + taken, left - taken
        counts = {context.pool.gpu.name: shared[context.pool.gpu.name] for context in contexts}
        found[tuple(counts.values())] = counts
    return list(found.values())


def _ways(contexts: Sequence[Context], asked: Asked, number: int) -> list[Strategies]:
    """Return the best ways of each type, with each sharding, as if it had all `number` GPUs, in one machine."""
    found: dict[tuple[object, ...], Strategies] = {}
    for context in contexts:
        alike = _as_if_alone(context, number)
        objective = Objective(model=alike.model, job=alike.job, pool=alike.pool)
        for code in range(len(SHARDING)):
            wanted = {**DATA_PARALLEL, "dp": number, "gpus": number, "sharding": code}
            within = {axis: asked.space.allowed(axis, (value,)) for axis, value in wanted.items()}
            if not all(within.values()):
                continue
            space = searched(alike, replace(asked.space, pins={**asked.space.pins, **within}))
            for _, row in search(alike, space, asked.filters, objective, top=WAYS).ranked:
                found[tuple(values_of(row).values())] = row
    return list(found.values())


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
    if check(plan) or not keeps_pins(plan, asked.space) or dropped(plan, contexts, asked.filters):
        return None
    if first.job.framework in AS_MANY_ON_EACH and len(set(machine_sizes(plan))) > 1:
        return None
    return plan
