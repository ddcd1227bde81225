"""How far a predicted peak may be off, and so how likely it is to fit.

log(measured / predicted) has median 0 and is normal on either side, with the standard deviations `above` and `below` of
the framework (`cost.memory.facts`), so that `headroom` and `fit_probability` are inverses of each other.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from shardwright.cost.memory.facts import memory_facts
from shardwright.spec.job import Job


def headroom(probability: float, job: Job) -> float:
    """Return the part of the memory that a predicted peak may fill for it to fit with `probability`."""
    return math.exp(-_sigma(probability >= 0.5, job) * NormalDist().inv_cdf(probability))


def fit_probability(peak_bytes: float, capacity_bytes: float, job: Job) -> float:
    """Return the probability that a predicted peak stays within the capacity."""
    if peak_bytes <= 0.0:
        return 1.0
    room = math.log(capacity_bytes / peak_bytes)
    return NormalDist().cdf(room / _sigma(room >= 0.0, job))


def _sigma(above: bool, job: Job) -> float:
    facts = memory_facts(job.framework)
    return facts.above if above else facts.below
