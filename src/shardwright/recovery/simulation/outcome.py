"""What came of a run on a trace: useful tokens, dollars, and the hours lost to each cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.cost.money import Exposure, egress_dollars, stretch, together
from shardwright.plans.plan import Plan
from shardwright.spec.offers import Terms
from shardwright.units import MEGA, SECONDS_PER_HOUR

USEFUL = "useful work"
CAUSES = (USEFUL, "fewer machines", "waiting", "re-forming", "moving state", "work done anew", "snapshots")
ON_DEMAND = "on demand only"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOutcome:
    """One strategy on one trace. `hours` has all of them by cause: an hour of useful work is one at the first plan's
    speed, and what a slower plan trains less is lost to fewer machines. `rates` are the tokens per second from which
    second on."""

    strategy: str
    tokens: float
    dollars: float
    hours: Mapping[str, float]
    losses: int
    recoveries: int
    moved_bytes: Mapping[str, float]
    rates: tuple[tuple[float, float], ...]

    @property
    def dollars_per_million_tokens(self) -> float:
        return self.dollars / self.tokens * MEGA if self.tokens else float("inf")


def on_demand(plan: Plan, hours: float) -> TraceOutcome | None:
    """Return what a run of so many hours on machines that nobody takes back comes to: failures alone lengthen it. None
    where a price is not known."""
    prediction, used = plan.prediction, plan.cluster.pools
    prices = [pool.price.on_demand_per_hour if pool.price else None for pool in used]
    if prediction is None or any(price is None for price in prices):
        return None
    machines, gpus = np.array([[pool.nodes for pool in used]]), np.array([pool.gpus_per_node for pool in used])
    exposed: Exposure = together(plan.model, plan.job, Terms(), machines, gpus, np.zeros(len(used)))
    useful = hours / float(stretch(exposed).factor[0])
    per_hour = sum(pool.nodes * (price or 0.0) for pool, price in zip(used, prices, strict=True))
    per_hour += egress_dollars(plan) * SECONDS_PER_HOUR / prediction.iteration_seconds
    lost = dict.fromkeys(CAUSES, 0.0) | {USEFUL: useful, "work done anew": hours - useful}
    rate = prediction.tokens_per_second
    return TraceOutcome(
        strategy=ON_DEMAND,
        tokens=useful * SECONDS_PER_HOUR * rate,
        dollars=per_hour * hours,
        hours=lost,
        losses=0,
        recoveries=0,
        moved_bytes={},
        rates=((0.0, rate), (hours * SECONDS_PER_HOUR, 0.0)),
    )
