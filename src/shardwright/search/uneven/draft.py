"""From shares to plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost.strategies import Ints, recompute_of
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


def plan_of(options: Sequence[GpuOptions], cluster: Cluster, shares: Shares, *, flash: bool, label: str = "") -> Plan:
    """Return the plan of shares. Rows beyond the batch are taken from the types whose GPUs take longest."""
    replicas = [
        _replica(own, int(shares.option[place]), rows, count, shares.state[place])
        for place, own in enumerate(options)
        for rows, count in _exact(options, shares)[place]
    ]
    context = options[0].context
    return Plan(
        model=context.model,
        job=context.job,
        cluster=cluster,
        micro_batch=max(replica.sizes(1)[0] for replica in replicas),
        schedule=Schedule(kind="layered", waves=int(options[0].shares.waves[0])),
        replicas=tuple(replicas),
        optimizer=OptimizerPlan(sharding="zero3", parts=shares.parts),
        overlap=Overlap(grad_reduce=True, param_gather=True),
        sequence_parallel=False,
        flash_attention=flash,
        label=label,
    )


def _exact(options: Sequence[GpuOptions], shares: Shares) -> list[list[tuple[int, int]]]:
    """Return, for each type, pairs of rows and how many GPUs take so many: their sum is the batch."""
    rows, counts = shares.rows.copy(), np.array([own.count for own in options])
    batch = options[0].context.job.global_batch
    fewer = np.zeros_like(rows)
    while (surplus := int(rows @ counts - fewer.sum()) - batch) > 0:
        times = [
            own.seconds[option, row - 1] if row > own.fewest_rows and not gone else -1.0
            for own, option, row, gone in zip(options, shares.option, rows, fewer, strict=True)
        ]
        place = int(np.argmax(times))
        assert times[place] >= 0.0, "a batch has a row for every GPU"
        if surplus >= counts[place]:
            rows[place] -= 1
        else:
            fewer[place] = surplus
    return [
        [(most, each) for most, each in ((int(row), int(count - gone)), (int(row) - 1, int(gone))) if each]
        for row, count, gone in zip(rows, counts, fewer, strict=True)
    ]


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
