"""What a mesh of ranks is worth: seconds of an iteration, or its dollars where money counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.context import Context
from shardwright.errors import bad
from shardwright.plans.plan import Plan
from shardwright.search.mixed.drafts.costing import costed
from shardwright.search.mixed.entry import affordable_value, by_dollars
from shardwright.search.mixed.one_mesh.candidates import Candidate
from shardwright.spec.job import Job
from shardwright.units import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class Worth:
    """What the job minimises. `machine_gpus` and `per_second`, dollars of a machine, are of each type, [G]; without
    prices (None) seconds count."""

    job: Job
    machine_gpus: Floats
    per_second: Floats | None

    def least(self, way: Candidate) -> float:
        """Return what no plan of a candidate is below, infinite where none keeps deadline and budget."""
        if self.per_second is None:
            return way.seconds
        gpus = np.array(way.counts) * way.copies * np.array(way.instance.setting.tp)
        dollars = way.seconds * float(np.ceil(gpus / self.machine_gpus) @ self.per_second)
        times = self.job.iterations
        if times is not None:
            late = self.job.deadline_hours is not None
            if late and way.seconds * times > (self.job.deadline_hours or 0.0) * SECONDS_PER_HOUR:
                return np.inf
            if self.job.budget_dollars is not None and dollars * times > self.job.budget_dollars:
                return np.inf
        return way.seconds if self.job.objective == "time" else dollars

    def longest(self, incumbent: float) -> float:
        """Return the seconds from which on no plan is below `incumbent`: it has a machine of two types at least."""
        if self.per_second is None or self.job.objective == "time":
            return incumbent
        return incumbent / float(np.sort(self.per_second)[:2].sum())

    def of(self, plan: Plan, seconds: float, context: Context) -> float | None:
        """Return what a plan that takes `seconds` comes to, None where it misses the deadline or the budget."""
        if self.per_second is None:
            return seconds
        return affordable_value(costed([context], plan))


def worth_of(contexts: Sequence[Context]) -> Worth:
    """Return what the job of `contexts` minimises. Raises SpecError for a price that it needs and that is not known."""
    job, pools = contexts[0].job, [context.pool for context in contexts]
    machine_gpus = np.array([pool.gpus_per_node for pool in pools], dtype=float)
    if not by_dollars(job):
        return Worth(job, machine_gpus, None)
    for pool in pools:
        if pool.dollars_per_node_hour is None:
            hint = "give price_per_hour for the machines in the cluster file"
            raise bad(f"price of {pool.gpu.name}", "is not known, but the objective or the budget needs it", hint)
    prices = [pool.dollars_per_node_hour or 0.0 for pool in pools]
    return Worth(job, machine_gpus, np.array(prices) / SECONDS_PER_HOUR)
