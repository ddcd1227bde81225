"""How sure it is which of two plans is faster: the 80 % interval of the ratio of their times.

Two plans of one model on the same machines share what the predictions get wrong of these. What they do not share grows
with how unlike the plans are,

    z = ½ Σ |s_i - s'_i| + ½ |log (T / T')|

where s are the parts of an iteration (forward, recomputation, bubble, …) and T its seconds. In four of five pairs
within published sweeps, of runs whose source the constants had not seen, the logarithm of the measured ratio was at
most h(z) from that of the predicted one; `python -m tools.refit ratios` makes the steps of h (`data/ratios.csv`).
"""

from __future__ import annotations

import math
from dataclasses import astuple
from functools import cache

import numpy as np

from shardwright.arrays import Floats
from shardwright.files import shipped_table
from shardwright.plans.plan import Plan, Prediction

SHARED = 0.5  # correlation of the errors of plans that have a GPU type in common; chosen, 0.3 to 0.7


def unlikeness(parts: Floats, others: Floats) -> Floats:
    """Return z for pairs of iterations given by the seconds of their parts, [N, T] each."""
    totals = parts.sum(axis=-1), others.sum(axis=-1)
    shares = np.abs(parts / totals[0][..., None] - others / totals[1][..., None]).sum(axis=-1)
    return np.asarray(0.5 * shares + 0.5 * np.abs(np.log(totals[0] / totals[1])))


@cache
def steps() -> tuple[Floats, Floats]:
    """Return the values of z from which each step of h reaches, ascending from 0, and its height, [S] each."""
    rows = shipped_table("shardwright.cost.trust", "ratios.csv")
    return np.array([float(row["unlike"]) for row in rows]), np.array([float(row["log_ratio"]) for row in rows])


def ratio_interval(mine: Plan, other: Plan) -> tuple[float, float]:
    """Return the 80 % interval of the seconds of an iteration of `mine` over those of `other`, both with predictions.
    Of plans of another model or on other GPU types the intervals of both count, half shared where a type is on both
    sides, and as independent elsewhere."""
    ours, theirs = mine.prediction, other.prediction
    assert ours is not None and theirs is not None
    ratio = ours.iteration_seconds / theirs.iteration_seconds
    one_model = mine.model.name == other.model.name
    if not one_model or mine.gpus_by_type.keys() != other.gpus_by_type.keys():
        (less, more), (theirs_less, theirs_more) = map(_log_ends, (ours, theirs))
        left = math.sqrt(1.0 - SHARED * (one_model and bool(mine.gpus_by_type.keys() & other.gpus_by_type.keys())))
        low, high = left * math.hypot(less, theirs_more), left * math.hypot(more, theirs_less)
        return ratio * math.exp(-low), ratio * math.exp(high)
    parts, others = (np.array(astuple(prediction.time)) for prediction in (ours, theirs))
    starts, heights = steps()
    half = float(heights[np.searchsorted(starts, unlikeness(parts, others), side="right") - 1])
    return ratio * math.exp(-half), ratio * math.exp(half)


def _log_ends(prediction: Prediction) -> tuple[float, float]:
    low, high = prediction.interval
    return math.log(prediction.iteration_seconds / low), math.log(high / prediction.iteration_seconds)
