"""Stages as lanes: each costed as if its whole pipeline were like it, by the machinery of uniform strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwright.cost.context import Context, Sharded, shard_codes, sharded
from shardwright.cost.efficiency import Efficiency
from shardwright.cost.overheads import Calibration
from shardwright.cost.strategy import DATA_OUTERMOST, RANK_ORDERS, RECOMPUTE, SHARDING, Strategies, strategies
from shardwright.plan.plan import Plan, Replica, Stage
from shardwright.spec.cluster import NodePool

Known = dict[tuple[object, ...], Sharded]  # layer tables by GPU type and sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A stage as if its whole pipeline were like it: the context of its machines and the row of its degrees."""

    context: Context
    row: Strategies
    shards: Sharded


def outermost(plan: Plan) -> bool:
    """Return whether the GPUs of a copy of a replica stand together, rather than the copies of a stage."""
    return RANK_ORDERS.index(plan.rank_order) == DATA_OUTERMOST


def lanes_of(
    plan: Plan,
    replica: Replica,
    efficiency: Efficiency,
    calibration: Calibration | None = None,
    *,
    known: Known | None = None,
) -> list[Lane]:
    """Return the lane of each stage; stages that are alike share one."""
    pools = {pool.gpu.name: pool for pool in plan.cluster.pools}
    known = {} if known is None else known
    made: dict[Stage, Lane] = {}
    for stage in replica.stages:
        alike = replace(stage, layers=())
        if alike not in made:
            made[alike] = _lane(plan, replica, stage, pools, efficiency, calibration, known)
    return [made[replace(stage, layers=())] for stage in replica.stages]


def _lane(
    plan: Plan,
    replica: Replica,
    stage: Stage,
    pools: Mapping[str, NodePool],
    efficiency: Efficiency,
    calibration: Calibration | None,
    known: Known,
) -> Lane:
    """Return the lane of a stage. All data-parallel copies of the plan share the state of a layer, so the row has them
    all, and the job as many samples as would give each of them this replica's micro-batches."""
    copies = plan.data_parallel
    job = replace(plan.job, global_batch=replica.micro_batches * plan.micro_batch * copies)
    pool = pools[stage.gpu]
    given = calibration.of(job.framework, pool.gpu) if calibration else None
    context = Context(model=plan.model, pool=pool, job=job, efficiency=efficiency, measured_overheads=given)
    first, last = replica.stages[0].layers[0], replica.stages[-1].layers[-1]
    row = strategies(
        [
            {
                "tp": stage.tensor_parallel,
                "cp": stage.context_parallel,
                "ep": stage.expert_parallel,
                "etp": stage.expert_tensor_parallel,
                "pp": len(replica.stages),
                "dp": copies,
                "vpp": plan.schedule.virtual_stages,
                "micro_batch": plan.micro_batch,
                "rank_order": RANK_ORDERS.index(plan.rank_order),
                "sequence_parallel": plan.sequence_parallel and stage.tensor_parallel > 1,
                "flash": plan.flash_attention,
                "overlap_tp": plan.overlap.tensor_parallel and stage.tensor_parallel > 1,
                "overlap_pp": plan.overlap.pipeline,
                "first_layers": first[1] - first[0],
                "last_layers": last[1] - last[0],
                "recompute": RECOMPUTE.index(stage.recompute.method or stage.recompute.granularity),
                "recompute_layers": stage.recompute.layers or 0,
                "sharding": SHARDING.index(plan.optimizer.sharding),
                "offload": plan.optimizer.offload,
                "overlap_grad": plan.overlap.grad_reduce,
                "overlap_param": plan.overlap.param_gather,
            }
        ]
    )
    key = (stage.gpu, int(shard_codes(row)[0]))
    if key not in known:
        known[key] = sharded(context, row)
    return Lane(context=context, row=row, shards=known[key])
