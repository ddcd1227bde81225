"""What a second of an iteration comes to on some number of machines of an offer: hours, dollars, preemptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.money.risk import MOST_STRETCH, Exposure, stretch, together
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.offers import Offer, Terms
from shardwright.units import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
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
    gpus = np.array([offer.pool.gpus_per_node for offer in offers])
    taken = np.array([offer.preemptions_per_hour for offer in offers])
    return together(model, job, terms, machines, gpus, taken)
