"""Between lines of a mixed search and plans, and what those plans take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shardwright.cost.context import Context
from shardwright.cost.iteration.footprint import Footprint
from shardwright.cost.iteration.lanes import Known, contexts_of
from shardwright.cost.iteration.mixed import Mixed, mixed_iteration
from shardwright.cost.predict import predict
from shardwright.cost.strategies import SHARDING, recompute_of
from shardwright.plans.check import check
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, RankOrder, Recompute, Replica, Schedule, Stage
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.mixed.drafts.splits import Line
from shardwright.search.mixed.tables.settings import Setting
from shardwright.spec.cluster import Cluster

ROUNDING = 1.0 - 1e-9  # numeric: bytes that are above a limit by less are equal to it

ORDERS: tuple[RankOrder, ...] = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")


@record
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
    sharing = setting.sharing.of(setting.cp * sum(replica.count for replica in replicas))
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
            context_parallel=setting.cp,
            expert_parallel=setting.ep,
            expert_tensor_parallel=setting.etp(kind, experts=experts),
            layers=((begin, end),),
            recompute=_recompute(*recompute, end - begin),
        )
        for kind, begin, end, recompute in zip(
            line.kinds, line.starts[:-1], line.starts[1:], line.recompute, strict=True
        )
    )


def _recompute(code: int, layers: int, held: int) -> Recompute:
    return recompute_of(code, min(layers, held))


def under_each_order(
    contexts: Sequence[Context], cluster: Cluster, draft: Draft, known: Known, allowed: Callable[[Plan], bool]
) -> Iterator[tuple[Plan, float | None]]:
    """Yield the legal plans of a draft that are `allowed`, one for each rank order, with the exact seconds of an
    iteration, None where it does not fit."""
    for order in ORDERS:
        plan = plan_of(contexts, cluster, draft, rank_order=order)
        if not check(plan) and allowed(plan):
            yield plan, fitting_seconds(contexts, plan, known)


def costed(contexts: Sequence[Context], plan: Plan, known: Known | None = None) -> Plan:
    """Return a legal plan with its prediction. `known` keeps layer tables between calls."""
    efficiency = contexts[0].efficiency
    return plan.costed(predict(plan, efficiency, known=known, contexts=contexts_of(plan, efficiency, made=contexts)))


def fitting_seconds(contexts: Sequence[Context], plan: Plan, known: Known) -> float | None:
    """Return the exact seconds of an iteration of a legal plan, None where it does not fit in memory."""
    iteration = fitting(contexts, plan, known)
    return None if iteration is None else coarse(iteration.seconds)


def fitting(contexts: Sequence[Context], plan: Plan, known: Known) -> Mixed | None:
    """Return the exact iteration of a legal plan, None where it does not fit in memory."""
    efficiency = contexts[0].efficiency
    iteration = mixed_iteration(plan, efficiency, known=known, contexts=contexts_of(plan, efficiency, made=contexts))
    return iteration if fits(contexts, plan, [replica.memory for replica in iteration.replicas]) else None


def fits(contexts: Sequence[Context], plan: Plan, memory: Sequence[Footprint]) -> bool:
    """Return whether every stage of a plan stays within its GPU's memory and its share of the machine's; `memory` is
    that of each replica's stages."""
    of_type = {context.pool.gpu.name: context for context in contexts}
    return all(
        bool(of_type[stage.gpu].holds(on_gpu * ROUNDING, in_host * ROUNDING))
        for replica, here in zip(plan.replicas, memory, strict=True)
        for stage, on_gpu, in_host in zip(replica.stages, here.total, here.in_host, strict=True)
    )
