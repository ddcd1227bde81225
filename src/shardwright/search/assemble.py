"""Between rows of strategies and plans, both ways."""

from __future__ import annotations

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.pipeline.splits import boundaries
from shardwright.cost.predict import predict
from shardwright.cost.strategies import RANK_ORDERS, RECOMPUTE, SHARDING, Strategies, strategies
from shardwright.errors import Problem, SpecError
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.spec.cluster import Cluster, NodePool


def plan_of(
    context: Context, cluster: Cluster, row: Strategies, *, label: str = "", bound: float | None = None
) -> Plan:
    """Return the plan of a single row, with its prediction."""
    value = {name: getattr(row, name)[0].item() for name in Strategies.__slots__}
    pp, vpp = value["pp"], value["vpp"]
    starts = boundaries(context.layer_count, pp * vpp, row.first_layers, row.last_layers)[0].tolist()
    stages = tuple(
        Stage(
            gpu=context.pool.gpu.name,
            tensor_parallel=value["tp"],
            context_parallel=value["cp"],
            expert_parallel=value["ep"],
            expert_tensor_parallel=value["etp"],
            layers=tuple((starts[chunk * pp + rank], starts[chunk * pp + rank + 1]) for chunk in range(vpp)),
            recompute=_recompute(value["recompute"], value["recompute_layers"]),
        )
        for rank in range(pp)
    )
    count = context.job.global_batch // (value["dp"] * value["micro_batch"])
    return Plan(
        model=context.model,
        job=context.job,
        cluster=cluster,
        micro_batch=value["micro_batch"],
        schedule=Schedule(kind="interleaved" if vpp > 1 else "1f1b", virtual_stages=vpp),
        replicas=(Replica(count=value["dp"], micro_batches=count, stages=stages),),
        optimizer=OptimizerPlan(sharding=SHARDING[value["sharding"]], offload=value["offload"]),  # type: ignore[arg-type]
        overlap=Overlap(
            grad_reduce=value["overlap_grad"],
            param_gather=value["overlap_param"],
            tensor_parallel=value["overlap_tp"],
            pipeline=value["overlap_pp"],
        ),
        sequence_parallel=value["sequence_parallel"],
        flash_attention=value["flash"],
        rank_order=RANK_ORDERS[value["rank_order"]],  # type: ignore[arg-type]
        label=label,
        prediction=predict(context, row, lower_bound_seconds=bound),
    )


def _recompute(code: int, layers: int) -> Recompute:
    name = RECOMPUTE[code]
    if name in ("uniform", "block"):
        return Recompute(granularity="full", method=name, layers=layers)  # type: ignore[arg-type]
    return Recompute(granularity=name)  # type: ignore[arg-type]


def row_of(plan: Plan) -> Strategies:
    """Return the row of a uniform plan. Raises SpecError for what the uniform cost model cannot price."""
    if not plan.uniform:
        raise SpecError(
            Problem("replicas", "differ, or have stages that differ", "only uniform plans can be evaluated so far")
        )
    replica = plan.replicas[0]
    first, pp, vpp = replica.stages[0], len(replica.stages), plan.schedule.virtual_stages
    return strategies(
        [
            {
                "tp": first.tensor_parallel,
                "cp": first.context_parallel,
                "pp": pp,
                "dp": replica.count,
                "ep": first.expert_parallel,
                "etp": first.expert_tensor_parallel,
                "vpp": vpp,
                "micro_batch": plan.micro_batch,
                "rank_order": RANK_ORDERS.index(plan.rank_order),
                "sequence_parallel": plan.sequence_parallel,
                "flash": plan.flash_attention,
                "overlap_tp": plan.overlap.tensor_parallel,
                "overlap_pp": plan.overlap.pipeline,
                "first_layers": first.layers[0][1] - first.layers[0][0],
                "last_layers": replica.stages[-1].layers[-1][1] - replica.stages[-1].layers[-1][0],
                "recompute": RECOMPUTE.index(first.recompute.method or first.recompute.granularity),
                "recompute_layers": first.recompute.layers or 0,
                "sharding": SHARDING.index(plan.optimizer.sharding),
                "offload": plan.optimizer.offload,
                "overlap_grad": plan.overlap.grad_reduce,
                "overlap_param": plan.overlap.param_gather,
            }
        ]
    )


def layer_starts(plan: Plan) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return the layer at which each virtual stage of a uniform plan starts, [1, v * P + 1]."""
    stages = plan.replicas[0].stages
    ranges = [stage.layers[chunk] for chunk in range(plan.schedule.virtual_stages) for stage in stages]
    return np.array([[start for start, _ in ranges] + [ranges[-1][1]]], dtype=np.int64)


def pool_of(plan: Plan) -> NodePool:
    """Return the machines on which a uniform plan runs."""
    name = plan.replicas[0].stages[0].gpu
    for pool in plan.cluster.pools:
        if pool.gpu.name == name:
            return pool
    have = ", ".join(pool.gpu.name for pool in plan.cluster.pools)
    raise SpecError(Problem("replicas[0].stages[0].gpu", f"{name} is not in the cluster", f"it has {have}"))
