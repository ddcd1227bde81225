"""Machines that are rented, and what a run on them is expected to come to."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.plans.plan import Plan
from shardwright.spec.offers import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """So many machines of one offer."""

    offer: Offer
    machines: int

    @property
    def gpus(self) -> int:
        return self.machines * self.offer.pool.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """One point of the front: what is rented, the plan for it, and what the whole run is expected to come to.

    `hours` and `dollars` count lost work, checkpoints and restarts under the best checkpoint interval
    (`checkpoint_interval_seconds` of work between two of them, None where nothing interrupts); the plan's own
    prediction is that of an undisturbed run. `preemptions` and `interruptions` (these and failures) are expected
    numbers in the whole run. `young_interval_seconds` is the usual approximation √(2 δ M), for comparison.
    """

    rentals: tuple[Rental, ...]
    plan: Plan
    hours: float
    dollars: float
    preemptions: float
    interruptions: float
    checkpoint_seconds: float
    checkpoint_interval_seconds: float | None
    young_interval_seconds: float | None
    recovery_seconds: float
    lost_share: float
    dollars_per_million_tokens: float

    @property
    def gpus(self) -> int:
        return sum(rental.gpus for rental in self.rentals)

    @property
    def point(self) -> tuple[float, float, float]:
        return self.hours, self.dollars, self.preemptions
