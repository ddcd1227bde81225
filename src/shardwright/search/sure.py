"""Plans that keep deadline and budget with a probability, not in expectation alone.

The probability is that of the interval (`cost.trust.interval`), which differs from plan to plan: by the GPUs, by how
near published runs are, by rare switches. So the limits are made as much tighter as the best plan needs, and the search
is asked again, until its best plan keeps the limits as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwright.cost.trust.interval import chances, limit_kept
from shardwright.plans.findings import Change, JobLimits, NotSure
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import NoPlan, Ranking
from shardwright.spec.job import Job

SEARCHES = 6  # with ever tighter limits


def surely(search: Callable[[Job], Ranking], job: Job, sure: float) -> Ranking:
    """Return the best plans that keep the limits of `job` with probability `sure`, best first, as `search` finds plans
    for a job; where there are none, a ranking that says what the best odds are."""
    free = search(replace(job, deadline_hours=None, budget_dollars=None, objective="time"))
    if not free.plans:
        return free
    margin, ranking = _margin(free.best, sure), free
    for _ in range(SEARCHES):
        ranking = search(_tightened(job, margin))
        kept = [place for place, plan in enumerate(ranking.plans) if odds(plan, job) >= sure]
        if kept:
            plans = (ranking.plans[place] for place in kept)
            return replace(
                ranking,
                plans=tuple(replace(plan, job=_with_limits(plan.job, job)) for plan in plans),
                trainers=tuple(ranking.trainers[place] for place in kept if ranking.trainers),
            )
        if not ranking.plans:
            break
        margin = max(margin, _margin(ranking.best, sure)) * (1.0 + 1e-6)
    return replace(ranking, plans=(), infeasible=_not_sure(search, job, sure, free.best), passed_over=None, trainers=())


def odds(plan: Plan, job: Job) -> float:
    """Return with what probability a costed plan keeps the limits of a job."""
    prediction = plan.predicted
    kept = chances(
        prediction,
        prediction.hours_total,
        prediction.dollars_total,
        deadline_hours=job.deadline_hours,
        budget_dollars=job.budget_dollars,
    )
    return min(kept.values(), default=1.0)


def _margin(plan: Plan, sure: float) -> float:
    """Return how many times its expectation a limit must be that a plan keeps with probability `sure`."""
    return limit_kept(plan.predicted, 1.0, sure)


def _tightened(job: Job, margin: float) -> Job:
    deadline, budget = job.deadline_hours, job.budget_dollars
    return replace(
        job,
        deadline_hours=None if deadline is None else deadline / margin,
        budget_dollars=None if budget is None else budget / margin,
    )


def _with_limits(job: Job, limits: Job) -> Job:
    return replace(job, deadline_hours=limits.deadline_hours, budget_dollars=limits.budget_dollars)


def _not_sure(search: Callable[[Job], Ranking], job: Job, sure: float, fastest: Plan) -> NoPlan:
    """Return that no plan is sure enough, with the best odds: those of the fastest plan or, where there is a budget, of
    the cheapest."""
    tried = [fastest]
    if job.budget_dollars is not None:
        tried += search(replace(job, deadline_hours=None, budget_dollars=None, objective="cost")).plans
    best = max(tried, key=lambda plan: odds(plan, job))
    prediction = best.predicted
    assert prediction.hours_total is not None, "runs with limits have a length"
    reason = NotSure(
        limits=JobLimits(deadline_hours=job.deadline_hours, budget_dollars=job.budget_dollars),
        sure=sure,
        odds=odds(best, job),
        hours=prediction.hours_total,
        dollars=prediction.dollars_total,
    )
    return NoPlan(reason=reason, remedies=(Change.OTHER_MACHINES,))
