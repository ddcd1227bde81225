"""`Shopping`: what a search over offers returns."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Infeasible
from shardwright.spec.offers import Offer, Offers


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """So many machines of one offer."""

    offer: Offer
    machines: int

    @property
    def gpus(self) -> int:
        return self.machines * self.offer.pool.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the next larger or smaller choice on the same offer changes: GPUs more, and the part by which the run gets
    faster and dearer (negative: slower, cheaper)."""

    gpus: int
    gpu: str
    faster: float
    dearer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Picks:
    """Places in the front that answer a question; None where no limit was given, or none keeps it."""

    knee: int | None = None
    cheapest_in_time: int | None = None
    fastest_in_budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopReport:
    """How the search went: numbers of machines of all offers, layouts on them, plans simulated, mixes searched, and
    seconds by phase; `not_covered` names what was not looked at."""

    counts: int
    layouts: int
    costed: int
    mixes: int
    seconds: float
    phases: tuple[tuple[str, float], ...]
    not_covered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shopping:
    """The front, fastest first, none of its choices as good as another in hours, dollars and preemptions; `steps` has
    what each changes against the next on the same offer. `infeasible` says why nothing keeps the limits."""

    front: tuple[Choice, ...]
    steps: tuple[Step | None, ...]
    picks: Picks
    offers: Offers
    deadline_hours: float | None
    budget_dollars: float | None
    report: ShopReport
    infeasible: Infeasible | None = None
