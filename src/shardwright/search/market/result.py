"""What a search over offers returns: the front of choices, and the answers that it holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.trust.interval import chances
from shardwright.plans.findings import (
    Cheapest,
    CheapestInTime,
    Fastest,
    FastestInBudget,
    JobLimits,
    NoOfferKeeps,
    NotSure,
    Remedy,
    Uncovered,
)
from shardwright.plans.ranking import NoPlan
from shardwright.records import record
from shardwright.search.renting import FrontPoint
from shardwright.spec.offers import Offers

MOST_LINES = 20  # of a front, where it is printed in a notebook
USUALLY_SURE = 0.8  # with which a pick keeps the limits where some choice does and nobody says how sure to be; chosen


@record
class SizeStep:
    """What the next larger or smaller choice on the same offer changes: GPUs more, and the part by which the run gets
    faster and dearer (negative: slower, cheaper)."""

    gpus: int
    gpu: str
    faster: float
    dearer: float


@record
class Picks:
    """Places in the front that answer a question; None where no limit was given, or none keeps it. `on_demand_in_time`
    is the cheapest within the deadline whose machines nobody takes back."""

    knee: int | None = None
    cheapest_in_time: int | None = None
    on_demand_in_time: int | None = None
    fastest_in_budget: int | None = None


@record
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


@record
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


@record
class Limits:
    """The deadline and the budget of a run, None where it has none, and how sure it must be to keep them (None: as
    expected, but `USUALLY_SURE` where some choice is)."""

    deadline_hours: float | None = None
    budget_dollars: float | None = None
    sure: float | None = None

    def chances(self, choice: FrontPoint) -> Mapping[str, float]:
        """Return with what probability a choice keeps each limit."""
        prediction = choice.plan.predicted
        return chances(
            prediction,
            choice.hours,
            choice.dollars,
            deadline_hours=self.deadline_hours,
            budget_dollars=self.budget_dollars,
        )

    def odds(self, choice: FrontPoint) -> float:
        """Return with what probability a choice keeps all limits."""
        return min(self.chances(choice).values(), default=1.0)

    def kept_by(self, front: Sequence[FrontPoint]) -> list[int]:
        """Return the places of the choices that keep the limits."""
        odds = [self.odds(choice) for choice in front]
        if self.sure is not None:
            return [place for place, chance in enumerate(odds) if chance >= self.sure]
        sure = [place for place, chance in enumerate(odds) if chance >= USUALLY_SURE]
        return sure or [place for place, choice in enumerate(front) if self._expected_within(choice)]

    def _expected_within(self, choice: FrontPoint) -> bool:
        in_time = self.deadline_hours is None or choice.hours <= self.deadline_hours
        return in_time and (self.budget_dollars is None or choice.dollars <= self.budget_dollars)


def limits_of(result: Shopping) -> Limits:
    """Return the limits that a search over offers was asked to keep."""
    return Limits(deadline_hours=result.deadline_hours, budget_dollars=result.budget_dollars, sure=result.sure)


def picks(front: Sequence[FrontPoint], limits: Limits) -> Picks:
    """Return the cheapest choice within the deadline, of all and of those that nobody takes back, the fastest within
    the budget (each keeps the other limit too), and the knee."""
    kept = limits.kept_by(front)
    cheapest = min(kept, key=lambda place: (front[place].dollars, front[place].hours), default=None)
    fastest = min(kept, key=lambda place: (front[place].hours, front[place].dollars), default=None)
    safe = [place for place in kept if not front[place].preemptions]
    secure = min(safe, key=lambda place: (front[place].dollars, front[place].hours), default=None)
    return Picks(
        knee=knee(front),
        cheapest_in_time=cheapest if limits.deadline_hours is not None else None,
        on_demand_in_time=secure if limits.deadline_hours is not None else None,
        fastest_in_budget=fastest if limits.budget_dollars is not None else None,
    )


def knee(front: Sequence[FrontPoint]) -> int | None:
    """Return the place of the choice farthest below the straight line from the fastest to the cheapest, with hours and
    dollars on logarithmic scales that both run from 0 to 1. None where fewer than three choices are left once those are
    out that another beats in both, or where the cheapest is free."""
    if not front:
        return None
    order = sorted(range(len(front)), key=lambda place: (front[place].hours, front[place].dollars))
    staircase: list[int] = []
    for place in order:
        if not staircase or front[place].dollars < front[staircase[-1]].dollars:
            staircase.append(place)
    first, last = front[staircase[0]], front[staircase[-1]]
    if len(staircase) < 3 or last.dollars == 0.0:
        return None
    wide, high = math.log(last.hours / first.hours), math.log(first.dollars / last.dollars)

    def above(place: int) -> float:
        choice = front[place]
        return math.log(choice.hours / first.hours) / wide + math.log(choice.dollars / last.dollars) / high

    return min(staircase, key=lambda place: (above(place), place))


def steps(front: Sequence[FrontPoint]) -> tuple[SizeStep | None, ...]:
    """Return, for each choice, what it changes against the next smaller one on the front with the same offers."""
    return tuple(_step(choice, front) for choice in front)


def _step(choice: FrontPoint, front: Sequence[FrontPoint]) -> SizeStep | None:
    offers = {rental.offer for rental in choice.rentals}
    alike = [other for other in front if {rental.offer for rental in other.rentals} == offers]
    smaller = max((other for other in alike if other.gpus < choice.gpus), key=lambda other: other.gpus, default=None)
    if smaller is None:
        return None
    return SizeStep(
        gpus=choice.gpus - smaller.gpus,
        gpu=" + ".join(rental.offer.pool.gpu.name for rental in choice.rentals),
        faster=1.0 - choice.hours / smaller.hours,
        dearer=choice.dollars / smaller.dollars - 1.0 if smaller.dollars else 0.0,
    )


def infeasible(front: Sequence[FrontPoint], limits: Limits) -> NoPlan | None:
    """Return why no choice keeps both limits, and what would, or None where one does."""
    if limits.kept_by(front):
        return None
    wanted = JobLimits(deadline_hours=limits.deadline_hours, budget_dollars=limits.budget_dollars)
    remedies = tuple(_would_do(front, limits.deadline_hours, limits.budget_dollars))
    if limits.sure is None:
        return NoPlan(reason=NoOfferKeeps(wanted), remedies=remedies)
    best = max(front, key=limits.odds)
    reason = NotSure(limits=wanted, sure=limits.sure, odds=limits.odds(best), hours=best.hours, dollars=best.dollars)
    return NoPlan(reason=reason, remedies=remedies)


def _would_do(
    front: Sequence[FrontPoint], deadline_hours: float | None, budget_dollars: float | None
) -> Iterator[Remedy]:
    """Yield what a limit that nothing keeps would have to be, and what the other one would be where one is kept."""
    fastest, cheapest = min(front, key=lambda c: c.hours), min(front, key=lambda c: c.dollars)
    if deadline_hours is not None and fastest.hours > deadline_hours:
        yield Fastest(fastest.hours, deadline_hours, fastest.dollars)
    if budget_dollars is not None and cheapest.dollars > budget_dollars:
        yield Cheapest(cheapest.dollars, budget_dollars, cheapest.hours)
    if deadline_hours is None or budget_dollars is None:
        return
    if fastest.hours <= deadline_hours:
        in_time = min((c for c in front if c.hours <= deadline_hours), key=lambda c: c.dollars)
        yield CheapestInTime(deadline_hours, in_time.dollars, budget_dollars)
    if cheapest.dollars <= budget_dollars:
        in_budget = min((c for c in front if c.dollars <= budget_dollars), key=lambda c: c.hours)
        yield FastestInBudget(budget_dollars, in_budget.hours, deadline_hours)


Payload = TypeVar("Payload")
Point = tuple[float, float, float]


@dataclass(slots=True)
class Front(Generic[Payload]):
    """The best points so far, each with what belongs to it."""

    points: list[tuple[Point, Payload]] = field(default_factory=list)

    def offer(self, point: Point, payload: Payload) -> bool:
        """Take in a point unless one is as good; drop those that it is as good as. Return whether it went in."""
        if any(_as_good(known, point) for known, _ in self.points):
            return False
        self.points = [(known, kept) for known, kept in self.points if not _as_good(point, known)]
        self.points.append((point, payload))
        return True

    def cuts(self, slopes: Floats) -> Floats:
        """Return, for rays t · slopes [N, 3], the t from which some point of the front is as good, [N]; infinite where
        none ever is."""
        cut = np.full(len(slopes), np.inf)
        safe = np.where(slopes > 0.0, slopes, 1.0)
        for point, _ in self.points:
            values = np.array(point)
            reached = np.where(slopes > 0.0, values / safe, np.where(values <= 0.0, 0.0, np.inf))
            cut = np.minimum(cut, reached.max(axis=1))
        return cut

    def sorted(self) -> list[tuple[Point, Payload]]:
        """Return the points, fastest first."""
        return sorted(self.points, key=lambda entry: entry[0])


def _as_good(point: Point, other: Point) -> bool:
    return all(a <= b for a, b in zip(point, other, strict=True))
