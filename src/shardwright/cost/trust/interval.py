"""The 80 % interval of a predicted time, calibrated on published runs that the prediction had not seen.

Errors of held-out predictions, log(measured / predicted), have independent causes, whose squares add up:

    [T exp(-f low), T exp(f high)],   low² = any² + site² + L lack² + E experts²,   high alike

any: what two runs of one site differ by; site: a site of which no run is known; L: how much of the setting no published
run has (`cost.trust.evidence.lack`); E: 1 for a mixture of experts. f is the framework's own, from its runs, 1 without
any. `data/causes.csv` has low and high of each cause, the catalogue's row of the framework has f;
`python -m tools.refit intervals` makes them.

How sure it is which of two plans is faster, the 80 % interval of the ratio of their times, follows from how unlike they
are: two plans of one model on the same machines share what the predictions get wrong of these. With

    z = ½ Σ |s_i - s'_i| + ½ |log (T / T')|

where s are the parts of an iteration (forward, recomputation, bubble, …) and T its seconds, in four of five pairs
within published sweeps, of runs whose source the constants had not seen, the logarithm of the measured ratio was at
most h(z) from that of the predicted one; `python -m tools.refit ratios` makes the steps of h (`data/ratios.csv`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.trust.evidence import Conditions, lack, seen_in_published
from shardwright.files import shipped_table
from shardwright.plans.plan import Plan, Prediction
from shardwright.records import record
from shardwright.spec.catalog.frameworks import figures, framework_rows

ANY, SITE, LACK, EXPERTS = "any", "site", "lack", "experts"
CAUSES = (ANY, SITE, LACK, EXPERTS)


@record
class Spread:
    """Two numbers above 0 for the lower and the upper end of an interval: log errors of a cause, or the factors of a
    framework on them."""

    low: float
    high: float


@lru_cache
def _causes() -> dict[str, Spread]:
    rows = shipped_table("shardwright.cost.trust", "causes.csv")
    return {row["cause"]: Spread(low=float(row["low"]), high=float(row["high"])) for row in rows}


@lru_cache
def _factors() -> dict[str, Spread]:
    return {name: figures(Spread, row) for name, row in framework_rows().items()}


def interval_seconds(seconds: float, setting: Conditions) -> tuple[float, float]:
    """Return the 80 % interval of the measured time of a job predicted to take `seconds`, at a site of which nothing is
    known."""
    missing = lack(setting, seen_in_published())
    present = {ANY: 1.0, SITE: 1.0, LACK: missing, EXPERTS: float(setting.experts)}
    return interval_of(seconds, setting.framework, present)


def interval_of(seconds: float, framework: str, present: Mapping[str, float]) -> tuple[float, float]:
    """Return the 80 % interval where so much of each cause is `present`."""
    causes, factor = _causes(), _factors()[framework]
    low = math.sqrt(sum(count * causes[cause].low ** 2 for cause, count in present.items()))
    high = math.sqrt(sum(count * causes[cause].high ** 2 for cause, count in present.items()))
    return seconds * math.exp(-factor.low * low), seconds * math.exp(factor.high * high)


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
