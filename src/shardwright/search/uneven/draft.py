"""From shares to plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Ints
from shardwright.cost.strategies import recompute_of
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Replica, Schedule, Stage
from shardwright.search.uneven.options import GpuOptions
from shardwright.spec.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
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
        _replica(own, int(shares.option[place]), rows, count, shares.state[place])
        for place, own in enumerate(options)
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
    rows, counts = shares.rows.copy(), np.array([own.count for own in options])
    fewer = np.zeros_like(rows)
    lower = _lower(options, shares, rows)
    surplus = int(rows @ counts) - options[0].context.job.global_batch
    while surplus > 0:
        steps = rows - lower
        open_to = (lower > 0) & (fewer == 0) & (steps <= surplus)
        if not open_to.any():
            return None
        times = [own.seconds[way, row - 1] for own, way, row in zip(options, shares.option, rows, strict=True)]
        place = int(np.where(open_to, times, -1.0).argmax())
        taken = min(surplus // int(steps[place]), int(counts[place]))
        surplus -= taken * int(steps[place])
        if taken == counts[place]:
            rows[place] = lower[place]
            lower = _lower(options, shares, rows)
        else:
            fewer[place] = taken
    return [
        [(most, each) for most, each in ((int(row), int(count - gone)), (int(less), int(gone))) if each]
        for row, less, count, gone in zip(rows, lower, counts, fewer, strict=True)
    ]


def _lower(options: Sequence[GpuOptions], shares: Shares, rows: Ints) -> Ints:
    """Return the most legal rows below those of each type, 0 where there are none."""
    pairs = zip(options, shares.option, rows, strict=True)
    return np.array([own.legal_rows[way, row - 1] for own, way, row in pairs])


def _replica(own: GpuOptions, option: int, rows: int, count: int, state: int) -> Replica:
    way = own.way(np.array([option]), np.array([rows]))
    stage = Stage(
        gpu=own.context.pool.gpu.name,
        tensor_parallel=1,
        context_parallel=1,
        expert_parallel=1,
        expert_tensor_parallel=1,
        layers=((0, own.context.layer_count),),
        recompute=recompute_of(int(way.recompute[0]), int(way.recompute_layers[0])),
    )
    return Replica(count=count, micro_batches=int(way.micro_batches[0]), stages=(stage,), rows=rows, state=state)
