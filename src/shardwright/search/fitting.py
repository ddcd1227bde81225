"""Single changes under which a plan that does not fit in memory does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from shardwright.arrays import Ints
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.iteration.moments import fixed_bytes
from shardwright.cost.iteration.room import fewest_recomputed_layers, fits
from shardwright.cost.strategies import BLOCK, row_of, stage_starts
from shardwright.plans.findings import BlockRecomputation, Change, Remedy, SmallerMicroBatch
from shardwright.plans.plan import OptimizerPlan, Plan, Recompute

LAYER_BY_LAYER = Recompute(granularity="full", method="uniform", layers=1)


def changes_that_fit(context: Context, plan: Plan) -> Iterator[tuple[Remedy, Plan]]:
    """Yield single changes of a uniform plan under which every stage fits, each with the plan so changed; none if it
    fits as it is. Whether a trainer runs the changed plan is not asked."""
    if not _fits(context, plan):
        yield from (change for change in _changes(context, plan) if _fits(context, change[1]))


def _changes(context: Context, plan: Plan) -> Iterator[tuple[Remedy, Plan]]:
    stage, state = plan.stages[0], plan.optimizer
    if stage.recompute.granularity == "none":
        yield Change.SELECTIVE_RECOMPUTATION, _recomputed(plan, Recompute(granularity="selective"))
    if stage.recompute.method != "uniform":
        if (layers := _fewest_recomputed_layers(context, plan)) is not None:
            again = Recompute(granularity="full", method="block", layers=layers)
            yield BlockRecomputation(layers), _recomputed(plan, again)
        yield Change.FULL_RECOMPUTATION, _recomputed(plan, LAYER_BY_LAYER)
    if plan.data_parallel * stage.context_parallel > 1 and state.sharding == "none":
        yield Change.ZERO1, _with_state(plan, replace(state, sharding="zero1"))
    if state.offload < 1.0 and not plan.job.options.precision_aware:
        sharding = "zero1" if state.sharding == "none" else state.sharding
        yield Change.OFFLOADED_OPTIMIZER, _with_state(plan, replace(state, sharding=sharding, offload=1.0))
    if plan.micro_batch % 2 == 0:
        halves = tuple(replace(replica, micro_batches=2 * replica.micro_batches) for replica in plan.replicas)
        half = plan.micro_batch // 2
        yield SmallerMicroBatch(half), replace(plan, micro_batch=half, replicas=halves, prediction=None)


def _recomputed(plan: Plan, recompute: Recompute) -> Plan:
    replicas = (
        replace(replica, stages=tuple(replace(stage, recompute=recompute) for stage in replica.stages))
        for replica in plan.replicas
    )
    return replace(plan, replicas=tuple(replicas), prediction=None)


def _with_state(plan: Plan, optimizer: OptimizerPlan) -> Plan:
    return replace(plan, optimizer=optimizer, prediction=None)


def _fewest_recomputed_layers(context: Context, plan: Plan) -> int | None:
    blocks = replace(row_of(plan), recompute=np.full(1, BLOCK))
    starts, shards = _starts(plan), layer_rows(context, blocks)
    fixed = fixed_bytes(context, blocks, shards, starts)
    layers, able = fewest_recomputed_layers(context, blocks, shards, starts, fixed)
    return int(layers[0]) if able[0] else None


def _fits(context: Context, plan: Plan) -> bool:
    row = row_of(plan)
    if not context.timed(row).all():
        return False  # of layers that were not measured so nothing is known
    starts, shards = _starts(plan), layer_rows(context, row)
    return bool(fits(context, row, shards, starts, fixed_bytes(context, row, shards, starts))[0])


def _starts(plan: Plan) -> Ints:
    return np.array([stage_starts(plan.replicas[0], plan.schedule.virtual_stages)])
