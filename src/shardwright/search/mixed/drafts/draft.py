"""Between lines of a mixed search and plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.cost.context import Context
from shardwright.cost.strategies import SHARDING, recompute_of
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, RankOrder, Recompute, Replica, Schedule, Stage
from shardwright.search.mixed.drafts.splits import Line
from shardwright.search.mixed.tables.settings import Setting
from shardwright.spec.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A mixed plan in the search's own terms: replicas as (line, count, micro-batches)."""

    setting: Setting
    replicas: tuple[tuple[Line, int, int], ...]
    seconds: float


def plan_of(contexts: Sequence[Context], cluster: Cluster, draft: Draft, *, rank_order: RankOrder) -> Plan:
    """Return the plan of a draft, without a prediction."""
    setting, context = draft.setting, contexts[0]
    replicas = tuple(
        Replica(count=count, micro_batches=size, stages=_stages(contexts, setting, line))
        for line, count, size in draft.replicas
    )
    sharing = setting.sharing.of(sum(replica.count for replica in replicas))
    split = any(stage.tensor_parallel > 1 for replica in replicas for stage in replica.stages)
    return Plan(
        model=context.model,
        job=context.job,
        cluster=cluster,
        micro_batch=setting.micro_batch,
        schedule=Schedule(),
        replicas=replicas,
        optimizer=OptimizerPlan(sharding=SHARDING[sharing.sharding], offload=sharing.offload),
        overlap=Overlap(
            grad_reduce=sharing.overlap_grad,
            param_gather=sharing.overlap_param,
            tensor_parallel=setting.overlap_tp and split,
        ),
        sequence_parallel=setting.sequence_parallel and split,
        flash_attention=setting.flash,
        rank_order=rank_order,
    )


def _stages(contexts: Sequence[Context], setting: Setting, line: Line) -> tuple[Stage, ...]:
    experts = any(kind.moe is not None for kind in contexts[0].model.kinds)
    return tuple(
        Stage(
            gpu=contexts[kind].pool.gpu.name,
            tensor_parallel=setting.tp[kind],
            context_parallel=1,
            expert_parallel=1,
            expert_tensor_parallel=setting.tp[kind] if experts else 1,
            layers=((begin, end),),
            recompute=_recompute(*recompute, end - begin),
        )
        for kind, begin, end, recompute in zip(
            line.kinds, line.starts[:-1], line.starts[1:], line.recompute, strict=True
        )
    )


def _recompute(code: int, layers: int, held: int) -> Recompute:
    return recompute_of(code, min(layers, held))
