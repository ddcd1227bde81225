"""Plans at once, for someone who is still changing the question: the rules of thumb of each GPU type, then mixed plans
that start from the best of these.

Nothing here is proved; `planner.plan` finds plans that are as good or better, and says how good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shardwright.cost.compute.efficiency import Efficiency, computes
from shardwright.cost.context import Context
from shardwright.cost.iteration.batch import bounded
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.facts import headroom
from shardwright.cost.strategies import ZERO3, Strategies
from shardwright.plans.abilities import job_problems
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.search.objective import affordable_value
from shardwright.search.ranked import costed_plan
from shardwright.search.replan import Kept, replan
from shardwright.search.uniform.baselines import rows_tried
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model

STARTS = 2  # rules of thumb, of different degrees, from which mixed plans are looked for


def first_plans(
    model: Model,
    cluster: Cluster,
    job: Job,
    *,
    fit: float = 0.9,
    efficiency: Efficiency | None = None,
    kept: Kept | None = None,
) -> Iterator[Plan]:
    """Yield costed plans, each better than those before; nothing where no rule of thumb fits.

    A plan that keeps the job's deadline and budget is better than one that does not. `kept` is that of `replan`. Raises
    SpecError for input that makes no sense.
    """
    model_of_time = efficiency or default_efficiency()
    starts = list(_rules_of_thumb(model, cluster, job, fit, model_of_time))
    best: Plan | None = None
    for plan in _tried(starts, cluster, fit, model_of_time, {} if kept is None else kept):
        if best is None or _order(plan) < _order(best):
            best = plan
            yield plan


@record(kw_only=False)
class _Start:
    """A row of a rule of thumb and the lower bound of its seconds."""

    seconds: float
    context: Context
    row: Strategies


def _rules_of_thumb(model: Model, cluster: Cluster, job: Job, fit: float, efficiency: Efficiency) -> Iterator[_Start]:
    """Yield, of each pool, the rows that fit, best first, each with another tensor-parallel degree or micro-batch."""
    for pool in cluster.pools:
        if not computes(pool.gpu, job.precision) or any(job_problems(pool.gpu, job)):
            continue
        context = Context(model=model, pool=pool, job=job, efficiency=efficiency, headroom=headroom(fit, job))
        rows = rows_tried(context)
        if rows is None:
            continue
        verdict = bounded(context, rows)
        seen: set[tuple[int, int]] = set()
        for place in np.argsort(np.where(verdict.fits, verdict.seconds, np.inf), kind="stable").tolist():
            setting = int(rows.tp[place]), int(rows.micro_batch[place])
            if verdict.fits[place] and setting not in seen:
                seen.add(setting)
                yield _Start(float(verdict.seconds[place]), context, rows.take(np.array([place])))


def _tried(
    starts: Sequence[_Start], cluster: Cluster, fit: float, efficiency: Efficiency, kept: Kept
) -> Iterator[Plan]:
    """Yield the most promising rule of thumb, then what it and the next ones lead to on all machines."""
    if not starts:
        return
    ahead = sorted(starts, key=lambda start: start.seconds)
    yield costed_plan(ahead[0].context, cluster, ahead[0].row)
    if len({pool.gpu.name for pool in cluster.pools}) == 1:
        return
    for start in _different(ahead):
        mixed = replan(
            costed_plan(start.context, cluster, start.row), cluster, fit=fit, efficiency=efficiency, kept=kept
        )
        if mixed is not None:
            yield mixed


def _different(starts: Sequence[_Start]) -> list[_Start]:
    """Return the first few starts whose tensor-parallel degrees differ; mixed plans know no ZeRO-3."""
    by_degree: dict[int, _Start] = {}
    for start in starts:
        if start.row.sharding[0] != ZERO3:
            by_degree.setdefault(int(start.row.tp[0]), start)
    return list(by_degree.values())[:STARTS]


def _order(plan: Plan) -> tuple[bool, float]:
    """Return what orders plans: those that keep the limits first, then by what the job minimises."""
    value = affordable_value(plan)
    return (True, plan.iteration_seconds) if value is None else (False, value)
