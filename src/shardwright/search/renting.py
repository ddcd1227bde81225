"""What a plan on rented machines is expected to come to, interruptions counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.money import MOST_STRETCH, Exposure, egress_dollars, stretch, together, young_interval_seconds
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.spec.cluster import NodePool, machines_used
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.offers import Offer, Terms, preemptions_per_hour
from shardwright.units import MEGA, SECONDS_PER_HOUR


@record
class Rental:
    """So many machines of one offer."""

    offer: Offer
    machines: int

    @property
    def gpus(self) -> int:
        return self.machines * self.offer.pool.gpus_of_machine


@record
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


def choice_on_cluster(plan: Plan) -> FrontPoint | None:
    """Return what a costed plan on its cluster is expected to come to. None where the run has no length or a price
    is not known."""
    taken = machines_used(plan.cluster, plan.gpus_by_type)
    priced = plan.prediction is not None and plan.prediction.dollars_per_hour is not None
    rentals = tuple(Rental(offer=_offer(pool), machines=count) for pool, count in taken)
    if plan.job.tokens is None or not priced:
        return None
    return choice_of(plan, rentals, Terms())


def _offer(pool: NodePool) -> Offer:
    return Offer(
        pool=pool, market="spot" if pool.spot else "on-demand", preemptions_per_hour=preemptions_per_hour(pool)
    )


def choice_of(plan: Plan, rentals: tuple[Rental, ...], terms: Terms) -> FrontPoint:
    """Return a costed plan as a point of the front."""
    prediction, job = plan.predicted, plan.job
    assert job.iterations is not None and job.tokens is not None, "a costed plan of a whole run"
    machines = np.array([[rental.machines for rental in rentals]])
    exposed = exposure(plan.model, job, [rental.offer for rental in rentals], terms, machines)
    longer = stretch(exposed)
    factor, rate = float(longer.factor[0]), float(exposed.interruptions_per_hour[0])
    undisturbed = prediction.iteration_seconds * job.iterations / SECONDS_PER_HOUR
    hours = coarse(undisturbed * factor)
    per_hour = sum(rental.machines * rental.offer.dollars_per_hour for rental in rentals)
    per_hour += egress_dollars(plan) * SECONDS_PER_HOUR / prediction.iteration_seconds
    dollars = coarse(per_hour * hours)
    taken = sum(rental.machines * rental.offer.preemptions_per_hour for rental in rentals)
    interval = float(longer.interval_seconds[0])
    checkpoint = float(exposed.checkpoint_seconds[0])
    per_second = exposed.interruptions_per_hour / SECONDS_PER_HOUR
    young = float(young_interval_seconds(per_second, exposed.checkpoint_seconds)[0]) if rate else None
    return FrontPoint(
        rentals=rentals,
        plan=plan.costed(replace(prediction, dollars_per_hour=per_hour, hours_total=hours, dollars_total=dollars)),
        hours=hours,
        dollars=dollars,
        preemptions=coarse(taken * hours),
        interruptions=rate * hours,
        checkpoint_seconds=checkpoint,
        checkpoint_interval_seconds=interval if math.isfinite(interval) else None,
        young_interval_seconds=young,
        recovery_seconds=float(exposed.recovery_seconds[0]),
        lost_share=1.0 - 1.0 / factor,
        dollars_per_million_tokens=per_hour * hours / job.tokens * MEGA,
    )


@record
class Tariff:
    """Arrays over numbers of machines, [K]: `slopes` [K, 3] are the expected hours, dollars and preemptions of the
    whole run for each second that an iteration takes, infinite where it never ends."""

    offer: Offer
    machines: Ints
    slopes: Floats


def tariff(model: Model, job: Job, offer: Offer, terms: Terms, machines: Ints) -> Tariff:
    """Return what so many machines of an offer cost. `job` says how many tokens the run has."""
    assert job.iterations is not None, "a run to shop for has a length"
    exposed = exposure(model, job, [offer], terms, machines[:, None])
    factor = stretch(exposed).factor
    ends = factor <= MOST_STRETCH
    hours = job.iterations / SECONDS_PER_HOUR * np.where(ends, factor, 1.0)
    slopes = np.stack(
        [hours, hours * machines * offer.dollars_per_hour, hours * machines * offer.preemptions_per_hour], axis=1
    )
    return Tariff(offer=offer, machines=machines, slopes=np.where(ends[:, None], slopes, np.inf))


def exposure(model: Model, job: Job, offers: Sequence[Offer], terms: Terms, machines: Ints) -> Exposure:
    """Return what runs on machines [N, offers] are up against."""
    gpus = np.array([offer.pool.gpus_of_machine for offer in offers])
    taken = np.array([offer.preemptions_per_hour for offer in offers])
    return together(model, job, terms, machines, gpus, taken)
