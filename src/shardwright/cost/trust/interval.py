"""The 80 % interval of a predicted time, calibrated on published runs that the prediction had not seen.

Errors of held-out predictions, log(measured / predicted), have a tenth and a ninetieth percentile for each framework;
they grow with the distance d of a setting from the nearest published run (`cost.trust.evidence`):

    [T exp(-low (1 + growth d)), T exp(high (1 + growth d))]

A GPU type of which no run is published has a further, independent error of `UNSEEN` (assumed: twice the error of a
framework on GPUs that are published), added in squares.

The catalogue's row of the framework has low and high, and the common growth;
`python -m tools.refit overheads` makes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from shardwright.cost.trust.evidence import Conditions, distances, published, unpublished
from shardwright.plans.plan import Prediction
from shardwright.spec.catalog.frameworks import figures, framework_rows

UNSEEN = 0.35  # log error of a tenth of the runs on a GPU without a published run; chosen, 0.2 to 0.5
FARTHEST = 4.0  # beyond, nothing is like it, and the interval stays; chosen, 3 to 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Log errors at distance 0, as numbers above 0, and how they grow per unit of distance."""

    low: float
    high: float
    growth: float


@lru_cache
def _spreads() -> dict[str, Spread]:
    return {name: figures(Spread, row) for name, row in framework_rows().items()}


def widened(spread: Spread, distance: float) -> tuple[float, float]:
    """Return the log errors at `distance` that one run in ten falls below, and one in ten exceeds."""
    wider = 1.0 + spread.growth * min(distance, FARTHEST)
    return -spread.low * wider, spread.high * wider


def interval_seconds(seconds: float, setting: Conditions) -> tuple[float, float]:
    """Return the 80 % interval of the measured time of a job predicted to take `seconds`."""
    distance = float(distances(setting, published()).min())
    return interval_at(seconds, setting.framework, distance, unseen=bool(unpublished([setting.gpu])))


def interval_at(seconds: float, framework: str, distance: float, *, unseen: bool = False) -> tuple[float, float]:
    """Return the 80 % interval where the nearest published run is at `distance`, and the GPU `unseen` in any."""
    low, high = widened(_spreads()[framework], distance)
    more = UNSEEN if unseen else 0.0
    return seconds * math.exp(-math.hypot(low, more)), seconds * math.exp(math.hypot(high, more))


def doubted(interval: tuple[float, float], seconds: float, doubt: float) -> tuple[float, float]:
    """Return the 80 % interval of a plan whose time has a further, independent log error upwards
    (`cost.trust.rarity.doubt`)."""
    low, high = interval
    return low, seconds * math.exp(math.hypot(math.log(high / seconds), doubt)) if doubt else high


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


def limit_kept(prediction: Prediction, expected: float, sure: float) -> float:
    """Return the limit that hours or dollars predicted as `expected` stay within with probability `sure`: the inverse
    of `chance_within`."""
    low, high = prediction.interval
    seconds, deviations = prediction.iteration_seconds, NormalDist().inv_cdf(sure)
    spread = math.log(high / seconds if deviations > 0.0 else seconds / low) / NINETIETH
    return expected * math.exp(deviations * spread)


def chances(
    prediction: Prediction,
    hours: float | None,
    dollars: float | None,
    *,
    deadline_hours: float | None,
    budget_dollars: float | None,
) -> Mapping[str, float]:
    """Return with what probability a run of so many expected hours and dollars keeps the deadline and the budget, as
    far as there are any. Both hang on the time of an iteration: it keeps both with the smaller probability."""
    stated = {"deadline": (hours, deadline_hours), "budget": (dollars, budget_dollars)}
    return {
        name: chance_within(prediction, expected, limit)
        for name, (expected, limit) in stated.items()
        if limit is not None and expected is not None
    }


def carried(prediction: Prediction, expected: float) -> tuple[float, float]:
    """Return the 80 % interval of hours or dollars predicted as `expected`."""
    low, high = prediction.interval
    return expected * low / prediction.iteration_seconds, expected * high / prediction.iteration_seconds
