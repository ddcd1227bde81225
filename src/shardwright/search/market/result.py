"""`Shopping`: what a search over offers returns."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.plans.findings import Uncovered
from shardwright.plans.ranking import NoPlan
from shardwright.search.renting.choice import FrontPoint
from shardwright.spec.offers import Offers

MOST_LINES = 20  # of a front, where it is printed in a notebook


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeStep:
    """What the next larger or smaller choice on the same offer changes: GPUs more, and the part by which the run gets
    faster and dearer (negative: slower, cheaper)."""

    gpus: int
    gpu: str
    faster: float
    dearer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Picks:
    """Places in the front that answer a question; None where no limit was given, or none keeps it. `on_demand_in_time`
    is the cheapest within the deadline whose machines nobody takes back."""

    knee: int | None = None
    cheapest_in_time: int | None = None
    on_demand_in_time: int | None = None
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
    not_covered: tuple[Uncovered, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shopping:
    """The front, fastest first, none of its choices dominates another in hours, dollars and preemptions; `steps` has
    what each changes against the next on the same offer. `infeasible` says why nothing keeps the limits, with
    probability `sure` where that was asked."""

    front: tuple[FrontPoint, ...]
    steps: tuple[SizeStep | None, ...]
    picks: Picks
    offers: Offers
    deadline_hours: float | None
    budget_dollars: float | None
    report: ShopReport
    infeasible: NoPlan | None = None
    sure: float | None = None

    def __repr__(self) -> str:
        lines = [
            f"{choice.hours:10,.1f} h {choice.dollars:14,.0f} $  "
            + " + ".join(f"{rental.gpus} {rental.offer.name}" for rental in choice.rentals)
            for choice in self.front[:MOST_LINES]
        ]
        left = len(self.front) - MOST_LINES
        return "\n".join([*lines, *([f"… {left} more"] if left > 0 else [])]) or "no choice"
