"""How well the probability to fit tells runs that ran from those that ran out of memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Bools, Floats
from shardwright.validation.metrics import roc_area

SURELY_NOT, SURELY = 0.1, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """The area under the ROC curve, the share of runs that ran although their probability is below 0.1, and of those
    that failed although theirs is above 0.9; None where there are no such runs."""

    ran: int
    failed: int
    roc_area: float | None
    ran_below_tenth: float | None
    failed_above_nine_tenths: float | None


def fits_of(probability: Floats, failed: Bools) -> Fits:
    """Return the quality of the probabilities to fit [N] of runs that failed for memory or ran."""
    area = roc_area(-probability, failed)
    ran = ~failed
    return Fits(
        ran=int(ran.sum()),
        failed=int(failed.sum()),
        roc_area=area if math.isfinite(area) else None,
        ran_below_tenth=float(np.mean(probability[ran] < SURELY_NOT)) if ran.any() else None,
        failed_above_nine_tenths=float(np.mean(probability[failed] > SURELY)) if failed.any() else None,
    )
