"""What the best plan is shown beside: rules of thumb, the best on each GPU type alone, the best of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Baseline
from shardwright.plans.remedies import Failure
from shardwright.search.kinds import OneType, Pipelines, Uneven
from shardwright.search.mixed.entry import affordable_value
from shardwright.search.ranked import costed_plan
from shardwright.search.uneven.search import EVEN_RULE
from shardwright.spec.cluster import Cluster

PIPELINES, UNEVEN = "pipelines over several types", "uneven FSDP over several types"


def best_of_kinds(mixed: Pipelines | None, uneven: Uneven) -> Iterator[Baseline]:
    """Yield the best plan of each kind over machines of several types, and FSDP as it is without shares."""
    pipelines = () if mixed is None else mixed.outcome.plans
    for kind, plans in ((PIPELINES, pipelines), (UNEVEN, uneven.outcome.plans), (EVEN_RULE, (uneven.outcome.even,))):
        plan = next((plan for plan in plans if plan is not None), None)
        yield Baseline(rule=kind, plan=plan, failure=Failure.DOES_NOT_FIT if plan is None else None)


def several_types(results: Sequence[OneType]) -> bool:
    """Return whether the machines searched have GPUs of several types."""
    return len({result.context.pool.gpu.name for result in results}) > 1


def shown_baselines(
    results: Sequence[OneType], cluster: Cluster, plans: Sequence[Plan], mixed: Pipelines | None
) -> tuple[Baseline, ...]:
    """Return the baselines of the pool of the best plan (of the first pool if there is none); where types can be mixed
    the best plan of each type alone, and the uniform plan over all."""
    if not results:
        return ()
    if mixed is not None:
        return (*_plain(results, cluster), _whole(mixed))
    chosen = results[0]
    for result in results:
        if plans and result.context.pool.gpu.name == plans[0].replicas[0].stages[0].gpu:
            chosen = result
            break
    return tuple(
        Baseline(
            rule=entry.rule,
            plan=None if entry.row is None else costed_plan(chosen.context, cluster, entry.row, label=entry.rule),
            failure=entry.failure,
        )
        for entry in chosen.tried
    )


def _plain(results: Sequence[OneType], cluster: Cluster) -> Iterator[Baseline]:
    for result in results:
        rule = f"the best plan on the {result.context.pool.gpu.name} alone"
        ranked = result.found.ranked
        if ranked:
            yield Baseline(rule=rule, plan=costed_plan(result.context, cluster, ranked[0][1], label=rule))
        else:
            job = result.context.job
            limited = job.deadline_hours is not None or job.budget_dollars is not None
            failure = Failure.DOES_NOT_FIT_OR_KEEP_LIMITS if limited else Failure.DOES_NOT_FIT
            yield Baseline(rule=rule, plan=None, failure=failure)


def _whole(mixed: Pipelines) -> Baseline:
    plan, rule = mixed.outcome.uniform, mixed.outcome.uniform_rule
    if plan is None:
        return Baseline(rule=rule, plan=None, failure=Failure.NOT_ON_ALL_TYPES)
    if affordable_value(plan) is None:
        return Baseline(rule=rule, plan=None, failure=Failure.MISSES_LIMITS)
    return Baseline(rule=rule, plan=plan)
