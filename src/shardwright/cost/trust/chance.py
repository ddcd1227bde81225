"""The chance that a run ends in time or within its money, from the 80 % interval of its iteration.

A time is taken to be log-normal on either side of its prediction T, with the interval's ends as tenth and ninetieth
percentile: P(time < t) = Φ(ln(t / T) / σ), σ = ln(high / T) / z above T and ln(T / low) / z below, z = Φ⁻¹(0.9).
Hours and dollars of a run are proportional to the time of an iteration, so the same holds of them.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from shardwright.plans.plan import Prediction

NINETIETH = NormalDist().inv_cdf(0.9)  # numeric


def chance_within(prediction: Prediction, expected: float, limit: float) -> float:
    """Return the probability that hours or dollars predicted as `expected` stay within `limit`."""
    if expected <= 0.0:
        return 1.0
    if limit <= 0.0:
        return 0.0
    low, high = prediction.interval
    seconds, ratio = prediction.iteration_seconds, math.log(limit / expected)
    spread = math.log(high / seconds if ratio > 0.0 else seconds / low) / NINETIETH
    if spread <= 0.0:
        return 1.0 if ratio >= 0.0 else 0.0
    return NormalDist().cdf(ratio / spread)


def carried(prediction: Prediction, expected: float) -> tuple[float, float]:
    """Return the 80 % interval of hours or dollars predicted as `expected`."""
    low, high = prediction.interval
    return expected * low / prediction.iteration_seconds, expected * high / prediction.iteration_seconds
