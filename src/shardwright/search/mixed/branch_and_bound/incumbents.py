"""The best plans found so far, costed exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.plans.plan import Plan
from shardwright.search.mixed.drafts.costing import under_each_order
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.spec.cluster import Cluster

MUCH_SLOWER = 1.05  # times the best plan: a plan that is slower under one rank order is not tried under the other


@dataclass(slots=True)
class Incumbents:
    """Plans that are `allowed`, the `best` of each kind with its seconds; `seconds` are those to beat."""

    contexts: Sequence[Context]
    cluster: Cluster
    known: Known
    allowed: Callable[[Plan], bool]
    seconds: float
    best: dict[tuple[object, ...], tuple[float, Plan]] = field(default_factory=dict)
    tried: dict[Draft, float] = field(default_factory=dict)
    costed: int = 0

    def offer(self, draft: Draft) -> float:
        """Cost a draft exactly under every rank order and keep the better plan. Return its seconds: infinite where it
        does not fit, the draft's own where these are too many."""
        if draft.seconds >= self.seconds:
            return draft.seconds
        if draft not in self.tried:
            self.tried[draft] = self._cost(draft)
        return self.tried[draft]

    def _cost(self, draft: Draft) -> float:
        best = np.inf
        for plan, seconds in under_each_order(self.contexts, self.cluster, draft, self.known, self.allowed):
            self.costed += 1
            if seconds is None:
                continue
            best = min(best, seconds)
            key = (plan.replicas, plan.micro_batch)
            if key not in self.best or seconds < self.best[key][0]:
                self.best[key] = (seconds, plan)
            self.seconds = min(self.seconds, best)
            if best > MUCH_SLOWER * self.seconds:
                break
        return best
