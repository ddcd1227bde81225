"""The 80 % interval of a predicted time, calibrated on published runs that the prediction had not seen.

Errors of held-out predictions, log(measured / predicted), have a tenth and a ninetieth percentile for each framework;
they grow with the distance d of a setting from the nearest published run (`cost.evidence`):

    [T exp(-low (1 + growth d)), T exp(high (1 + growth d))]

The catalogue's row of the framework has low and high, and the common growth;
`python -m shardwright.calibrate overheads` makes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from shardwright.cost.trust.evidence import Setting, distances, published
from shardwright.spec.catalog.frameworks import figures, framework_rows

FARTHEST = 4.0  # beyond, nothing is like it, and the interval stays; chosen


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


def interval_seconds(seconds: float, setting: Setting) -> tuple[float, float]:
    """Return the 80 % interval of the measured time of a job predicted to take `seconds`."""
    return interval_at(seconds, setting.framework, float(distances(setting, published()).min()))


def interval_at(seconds: float, framework: str, distance: float) -> tuple[float, float]:
    """Return the 80 % interval where the nearest published run is at `distance`."""
    low, high = widened(_spreads()[framework], distance)
    return seconds * math.exp(low), seconds * math.exp(high)
