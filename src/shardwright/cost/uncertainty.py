"""How far a prediction may be off: an 80 % interval for time, a probability to fit for memory.

The analytic model is not fitted to training runs. The figures below are the spread of its errors on published runs
(docs/accuracy.md says which, and how to repeat it).
"""

from __future__ import annotations

import math
from statistics import NormalDist

TIME_RATIO_10, TIME_RATIO_90 = 0.85, 1.35  # measured / predicted seconds, 10th and 90th percentile
MEMORY_LOG_SIGMA = 0.10  # standard deviation of log(measured / predicted peak memory)


def interval_seconds(seconds: float) -> tuple[float, float]:
    """Return the 80 % interval of the measured time."""
    return seconds * TIME_RATIO_10, seconds * TIME_RATIO_90


def headroom(probability: float) -> float:
    """Return the part of the memory that a predicted peak may fill for it to fit with `probability`."""
    return math.exp(-MEMORY_LOG_SIGMA * NormalDist().inv_cdf(probability))


def fit_probability(peak_bytes: float, capacity_bytes: float) -> float:
    """Return the probability that a predicted peak stays within the capacity, for log-normal errors."""
    if peak_bytes <= 0.0:
        return 1.0
    return NormalDist().cdf(math.log(capacity_bytes / peak_bytes) / MEMORY_LOG_SIGMA)
