"""The 80 % interval of a predicted time, calibrated on published runs that the prediction had not seen.

Errors of held-out predictions, log(measured / predicted), have independent causes, whose squares add up:

    [T exp(-f low), T exp(f high)],   low² = any² + site² + L lack² + E experts²,   high alike

any: what two runs of one site differ by; site: a site of which no run is known; L: how much of the setting no published
run has (`cost.trust.evidence.lack`); E: 1 for a mixture of experts. f is the framework's own, from its runs, 1 without
any. `data/causes.csv` has low and high of each cause, the catalogue's row of the framework has f;
`python -m tools.refit intervals` makes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from statistics import NormalDist

from shardwright.cost.trust.evidence import Conditions, lack, seen_in_published
from shardwright.files import shipped_table
from shardwright.plans.plan import Prediction
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
