"""Mixes of two offers: which ones could reach beyond the front, and what the mixed search makes of them.

A mix can win where the better offer has no more machines. At best its machines add up their speeds, each as fast as in
the best plan of its own kind; a mix whose point at that speed the front already has is not searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.money import MOST_STRETCH, stretch
from shardwright.plans.abilities import makers
from shardwright.plans.findings import PlacesApart
from shardwright.records import record
from shardwright.search.market.result import Front, Point
from shardwright.search.market.sweep import Find, Sweep
from shardwright.search.renting import Rental, exposure
from shardwright.spec.cluster import Cluster, SiteLink
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.offers import Offer, Offers
from shardwright.units import SECONDS_PER_HOUR

SHARES = (1.0, 0.5, 0.25)  # of all machines of an offer
LEAST_GAIN = 1.03  # how far beyond the front a mix must reach at best


@record
class Mix:
    """Machines of two offers, and by what factor they reach beyond the front at best."""

    rentals: tuple[Rental, ...]
    gain: float

    @property
    def gpus(self) -> int:
        return sum(rental.gpus for rental in self.rentals)

    @property
    def whole(self) -> bool:
        """Whether it takes all machines of its offers."""
        return all(rental.machines == rental.offer.pool.nodes for rental in self.rentals)


def machine_seconds(runs: Sequence[Sweep], front: Front[Find]) -> dict[Offer, float]:
    """Return, for each offer, the least seconds of an iteration times machines: how slow one machine is at best. Bounds
    are scaled by the least that a plan of the front lies above them."""
    least = {run.lot: float((run.bounds * run.counts).min(initial=np.inf)) for run in runs}
    looseness = [find.seconds * find.machines / least[find.lot] for _, find in front.points]
    scale = max(min(looseness, default=1.0), 1.0)
    seconds: dict[Offer, float] = {}
    for run in runs:
        for tariff in run.tariffs:
            seconds[tariff.offer] = min(seconds.get(tariff.offer, np.inf), least[run.lot] * scale)
    return seconds


def promising(model: Model, job: Job, offers: Offers, slowness: dict[Offer, float], front: Front[Find]) -> list[Mix]:
    """Return the mixes that could reach beyond the front, the farthest first."""
    mixes = [
        Mix(rentals=rentals, gain=gain)
        for rentals in _pairs(slowness, offers.site_links)
        if (gain := _gain(model, job, offers, rentals, slowness, front)) >= LEAST_GAIN
    ]
    return sorted(mixes, key=lambda mix: (-mix.gain, mix.gpus))


def cluster_of(rentals: Sequence[Rental], site_links: Sequence[SiteLink]) -> Cluster:
    """Return the machines of a mix as a cluster."""
    pools = tuple(rental.offer.pool.resized(rental.machines) for rental in rentals)
    return Cluster(pools=pools, site_links=tuple(site_links)).of(pools)


def _pairs(slowness: dict[Offer, float], site_links: Sequence[SiteLink]) -> Iterator[tuple[Rental, ...]]:
    """Yield shares of two offers of two GPU types that stand at one place or have a link between their sites."""
    for mine, other in combinations([offer for offer, slow in slowness.items() if np.isfinite(slow)], 2):
        if _of_two_types(mine, other) and _joined(mine, other, site_links):
            counts = (sorted({max(int(offer.pool.nodes * share), 1) for share in SHARES}) for offer in (mine, other))
            for first, second in product(*counts):
                yield Rental(offer=mine, machines=first), Rental(offer=other, machines=second)


def apart(offers: Offers) -> Iterator[PlacesApart]:
    """Yield which offers are not mixed because no link joins where they stand."""
    places = [(offer.place, other.place) for offer, other in combinations(offers.offers, 2)
              if _of_two_types(offer, other) and not _joined(offer, other, offers.site_links)]  # fmt: skip
    distinct = dict.fromkeys((min(pair), max(pair)) for pair in places)
    if distinct:
        yield PlacesApart(tuple(distinct))


def _of_two_types(offer: Offer, other: Offer) -> bool:
    """Return whether offers are of GPUs of two types that one plan may have."""
    gpus = offer.pool.gpu, other.pool.gpu
    return gpus[0].name != gpus[1].name and len(makers(gpus)) < 2


def _joined(offer: Offer, other: Offer, site_links: Sequence[SiteLink]) -> bool:
    if offer.place == other.place:
        return True
    return any({offer.pool.site, other.pool.site} == set(link.sites) for link in site_links)


def _gain(
    model: Model,
    job: Job,
    offers: Offers,
    rentals: tuple[Rental, ...],
    slowness: dict[Offer, float],
    front: Front[Find],
) -> float:
    """Return the seconds from which the front is as good over those of a mix at best."""
    assert job.iterations is not None, "a run to shop for has a length"
    machines = np.array([[rental.machines for rental in rentals]])
    exposed = exposure(model, job, [rental.offer for rental in rentals], offers.terms, machines)
    factor = float(stretch(exposed).factor[0])
    if factor > MOST_STRETCH:
        return 0.0
    hours = job.iterations / SECONDS_PER_HOUR * factor
    seconds = 1.0 / sum(rental.machines / slowness[rental.offer] for rental in rentals)
    slopes: Floats = np.array([_point(rentals, hours)])
    return float(front.cuts(slopes)[0]) / seconds


def _point(rentals: Sequence[Rental], hours: float) -> Point:
    per_hour = sum(rental.machines * rental.offer.dollars_per_hour for rental in rentals)
    taken = sum(rental.machines * rental.offer.preemptions_per_hour for rental in rentals)
    return hours, hours * per_hour, hours * taken
