"""Shares of the state to try, and from shares to plans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import lcm

import numpy as np

from shardwright.arrays import Floats, Ints, distinct_rows
from shardwright.cost.strategies import recompute_of
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Replica, Schedule, Stage
from shardwright.records import record
from shardwright.search.uneven.options import GpuOptions
from shardwright.spec.cluster import Cluster

STEPS = {1: 1, 2: 200, 3: 40, 4: 20}  # of the grid, by the number of types; chosen
FEWEST_STEPS = 10
FINER = 5  # by which the grid is refined around its best points; chosen


@record
class Shares:
    """For each GPU type: the most rows of a GPU, the way that it runs them, and the parts of the state that each of its
    GPUs keeps, [G] each; `parts` in all."""

    rows: Ints
    option: Ints
    state: tuple[int, ...]
    parts: int


def plan_of(
    options: Sequence[GpuOptions], cluster: Cluster, shares: Shares, *, flash: bool, label: str = ""
) -> Plan | None:
    """Return the plan of shares, None where their rows cannot be made the batch's. Rows beyond it are taken from the
    types whose GPUs take longest."""
    kinds = _exact(options, shares)
    if kinds is None:
        return None
    replicas = [
        _replica(gpu, int(shares.option[place]), rows, count, shares.state[place])
        for place, gpu in enumerate(options)
        for rows, count in kinds[place]
    ]
    context = options[0].context
    return Plan(
        model=context.model,
        job=context.job,
        cluster=cluster,
        micro_batch=max(replica.sizes(1)[0] for replica in replicas),
        schedule=Schedule(kind="layered", waves=options[0].waves),
        replicas=tuple(replicas),
        optimizer=OptimizerPlan(sharding="zero3", parts=shares.parts),
        overlap=Overlap(grad_reduce=True, param_gather=True),
        sequence_parallel=False,
        flash_attention=flash,
        label=label,
    )


def _exact(options: Sequence[GpuOptions], shares: Shares) -> list[list[tuple[int, int]]] | None:
    """Return, for each type, pairs of rows and how many GPUs take so many: their sum is the batch."""
    rows, counts = shares.rows.copy(), np.array([gpu.count for gpu in options])
    fewer = np.zeros_like(rows)
    lower = _lower(options, shares, rows)
    surplus = int(rows @ counts) - options[0].context.job.global_batch
    while surplus > 0:
        steps = rows - lower
        open_to = (lower > 0) & (fewer == 0) & (steps <= surplus)
        if not open_to.any():
            return None
        times = [gpu.seconds[way, row - 1] for gpu, way, row in zip(options, shares.option, rows, strict=True)]
        place = int(np.where(open_to, times, -1.0).argmax())
        taken = min(surplus // int(steps[place]), int(counts[place]))
        surplus -= taken * int(steps[place])
        if taken == counts[place]:
            rows[place] = lower[place]
            lower = _lower(options, shares, rows)
        else:
            fewer[place] = taken
    return [
        [(most, repeated) for most, repeated in ((int(row), int(count - gone)), (int(less), int(gone))) if repeated]
        for row, less, count, gone in zip(rows, lower, counts, fewer, strict=True)
    ]


def _lower(options: Sequence[GpuOptions], shares: Shares, rows: Ints) -> Ints:
    """Return the most legal rows below those of each type, 0 where there are none."""
    pairs = zip(options, shares.option, rows, strict=True)
    return np.array([gpu.legal_rows[way, row - 1] for gpu, way, row in pairs])


def _replica(gpu: GpuOptions, option: int, rows: int, count: int, state: int) -> Replica:
    way = gpu.way(np.array([option]), np.array([rows]))
    stage = Stage(
        gpu=gpu.context.pool.gpu.name,
        tensor_parallel=1,
        context_parallel=1,
        expert_parallel=1,
        expert_tensor_parallel=1,
        layers=((0, gpu.context.layer_count),),
        recompute=recompute_of(int(way.recompute[0]), int(way.recompute_layers[0])),
    )
    return Replica(count=count, micro_batches=int(way.micro_batches[0]), stages=(stage,), rows=rows, state=state)


def steps_for(types: int) -> int:
    """Return into how many steps the grid cuts the state."""
    return STEPS.get(types, FEWEST_STEPS)


def grid(types: int, steps: int) -> Ints:
    """Return all ways to give `steps` steps of the state to types, [N, G]."""
    if types == 1:
        return np.array([[steps]])
    bars = np.array(list(combinations(range(steps + types - 1), types - 1)), dtype=np.int64).reshape(-1, types - 1)
    ends = np.full((len(bars), 1), steps + types - 1)
    return np.diff(np.concatenate([np.full((len(bars), 1), -1), bars, ends], axis=1), axis=1) - 1


def around(point: Ints, steps: int) -> Ints:
    """Return the points of a grid `FINER` times as fine around a point [G] of one with `steps` steps, [N, G]."""
    offsets = grid_of_offsets(len(point))
    finer = point * FINER + offsets
    return distinct_rows(finer[(finer >= 0).all(axis=1) & (finer.sum(axis=1) == steps * FINER)])


def grid_of_offsets(types: int) -> Ints:
    """Return offsets of up to `FINER` for all types but the last, which makes up for them, [N, G]."""
    span = np.arange(-FINER, FINER + 1)
    free = np.stack(np.meshgrid(*[span] * (types - 1), indexing="ij"), axis=-1).reshape(-1, types - 1)
    return np.concatenate([free, -free.sum(axis=1, keepdims=True)], axis=1)


def shares_of(points: Ints, steps: int, counts: Sequence[int]) -> Floats:
    """Return the share of each GPU of a type, [N, G], where the type has `points` of `steps` steps."""
    return np.asarray(points / (steps * np.array(counts)))


def parts_of(point: Ints, steps: int, counts: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Return the parts that a GPU of each type keeps, and of how many in all: whole numbers in lowest terms."""
    multiple = lcm(*counts)
    parts = [int(steps_of) * (multiple // count) for steps_of, count in zip(point.tolist(), counts, strict=True)]
    common = int(np.gcd.reduce([*parts, steps * multiple]))
    return tuple(part // common for part in parts), steps * multiple // common
