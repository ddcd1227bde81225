"""What is minimised, the limits a plan must keep, and which of two plans comes first."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.money import dollars_per_hour, pool_stretch
from shardwright.errors import bad
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.spec.cluster import NodePool
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.units import SECONDS_PER_HOUR

INDIFFERENCE = 0.01  # part of the objective that a better-proven plan may cost more, if not told; chosen, 0 to 0.1
MOST_INDIFFERENCE = 0.1
Preference = tuple[bool, int, float]


def require_sure(sure: float | None, job: Job) -> None:
    """Raise SpecError for a probability of keeping limits that is none, or where there are no limits."""
    if sure is None:
        return
    if not 0.0 < sure < 1.0:
        raise bad("`sure=`", f"{sure:g} is not a probability over 0 and under 1", "0.8 is usual")
    if job.deadline_hours is None and job.budget_dollars is None:
        raise bad("`sure=`", "is of a deadline or a budget, and there is none", "say which: `deadline=`, `budget=`")


def require_indifference(part: float) -> None:
    """Raise SpecError where a part of the objective is not one that a better-proven plan may cost more."""
    if not 0.0 <= part <= MOST_INDIFFERENCE:
        message = f"{part:g} is not a fraction from 0 to {MOST_INDIFFERENCE:g}"
        raise bad("`indifference=`", message, "0.01 or 1% is the default")


def require_fit(fit: float) -> None:
    """Raise SpecError where a plan need fit in memory with no probability that can be asked for."""
    if not 0.01 <= fit <= 0.99:
        raise bad("`fit=`", f"{fit} is not a probability from 0.01 to 0.99", "0.9 is the default")


def preference(value: float, rare: int, within: float) -> Preference:
    """Return what orders plans by their value and their number of rare switches (`cost.trust.rarity`): those of values
    up to `within`, which are as good, by rare switches; the others after them by value."""
    return (True, 0, value) if value > within else (False, rare, value)


def to_beat(preferences: Iterable[Preference], number: int, within: float) -> float:
    """Return the value above which no plan is among the first `number`: infinite where there are fewer yet. A plan with
    rare switches makes room for all that are as good."""
    ordered = sorted(preferences)
    if len(ordered) < number:
        return np.inf
    beyond, rare, value = ordered[number - 1]
    return value if beyond or not rare else within


def affordable_value(plan: Plan) -> float | None:
    """Return what the job minimises for a costed plan, or None where it misses the deadline or the budget. Raises
    SpecError where that needs a price that is not known."""
    prediction, job, dollars = plan.predicted, plan.job, plan.iteration_dollars
    hours, total = prediction.hours_total, prediction.dollars_total
    if job.deadline_hours is not None and hours is not None and hours > job.deadline_hours:
        return None
    if job.budget_dollars is not None and total is not None and total > job.budget_dollars:
        return None
    if job.objective == "time":
        return coarse(prediction.iteration_seconds)
    return None if dollars is None else coarse(dollars)


def most_valued(job: Job, pools: Iterable[NodePool]) -> float:
    """Return the most that an iteration may take, in what a job minimises, to keep deadline and budget on one machine
    or more of some `pools`, infinite where nothing limits it. Interruptions, which lengthen the run, are not counted.
    """
    if job.iterations is None:
        return np.inf
    dollars = np.inf if job.budget_dollars is None else job.budget_dollars / job.iterations
    if job.objective == "cost":
        return dollars
    seconds = np.inf if job.deadline_hours is None else job.deadline_hours * SECONDS_PER_HOUR / job.iterations
    cheapest = min(pool.dollars_per_node_hour or 0.0 for pool in pools)  # with no price known, whatever it takes
    return min(seconds, dollars / cheapest * SECONDS_PER_HOUR) if cheapest > 0.0 else seconds


@record
class Objective:
    """Minimise seconds or dollars of an iteration on one pool, within a deadline and a budget for the whole job.
    Dollars and limits are those to expect, lost work and restarts after failures and preemptions counted."""

    model: Model
    job: Job
    pool: NodePool
    longest: float = np.inf

    def values(self, seconds: Floats, gpus: Ints) -> Floats:
        """Return what is minimised, [N], rounded: strategies that are as good but for rounding have equal values."""
        if self.job.objective == "time":
            return coarse(seconds)
        return coarse(seconds * self._per_second(gpus) * self._longer(gpus))

    def limits(self, gpus: Ints) -> Floats:
        """Return the longest iteration that keeps deadline and budget and is of interest, [N]."""
        limit = np.full(len(gpus), np.inf)
        if self.job.iterations is None:
            return np.asarray(np.minimum(limit, self.longest))
        if self.job.deadline_hours is not None:
            limit = np.minimum(limit, self.job.deadline_hours * SECONDS_PER_HOUR / self.job.iterations)
        if self.job.budget_dollars is not None:
            with np.errstate(divide="ignore"):  # machines that cost nothing keep any budget
                limit = np.minimum(limit, self.job.budget_dollars / self.job.iterations / self._per_second(gpus))
        return np.asarray(np.minimum(limit / self._longer(gpus), self.longest))

    def _longer(self, gpus: Ints) -> Floats:
        """Return by what interruptions lengthen the run, [N]; 1 where it has no length."""
        if self.job.tokens is None:
            return np.ones(len(gpus))
        return pool_stretch(self.model, self.job, self.pool, -(-gpus // self.pool.gpus_per_node))

    def _per_second(self, gpus: Ints) -> Floats:
        per_hour = dollars_per_hour(self.pool, gpus)
        if per_hour is None:
            raise bad(
                f"price of {self.pool.machines}",
                "is not known, but the objective or the budget needs it",
                "give price_per_hour for the machines in the cluster file",
            )
        if self.job.objective == "cost" and (per_hour <= 0.0).any():
            message, hint = "is 0, so that all plans on it cost the same", "`objective=time` finds the fastest of them"
            raise bad(f"price of {self.pool.machines}", message, hint)
        return per_hour / SECONDS_PER_HOUR
