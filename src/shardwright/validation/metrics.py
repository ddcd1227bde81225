"""How good predictions are, of seconds and of what fits: on plain arrays, by group of runs, over sources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, places_by_value
from shardwright.records import record

SMALLEST_SWEEP = 4
NAMELESS = "not stated"


def absolute_errors(predicted: Floats, measured: Floats) -> Floats:
    """Return |predicted / measured - 1| of each pair, [N]."""
    return np.asarray(np.abs(predicted / measured - 1.0))


def covered(low: Floats, high: Floats, measured: Floats) -> Bools:
    """Return whether each measurement is within its interval, ends included, [N]."""
    return np.asarray((low <= measured) & (measured <= high))


def kendall_tau(first: Floats, second: Floats) -> float:
    """Return Kendall's rank correlation, tau-b, of two columns [N]: 1 for the same order, -1 for the opposite one.

    Σ a b / sqrt(Σ a² Σ b²) over all pairs, a and b the signs of their differences (M. G. Kendall, The treatment of ties
    in ranking problems, Biometrika 33, 1945). Not a number where a column has only one value.
    """
    left, right = (np.sign(np.subtract.outer(column, column)) for column in (first, second))
    ordered = float((left**2).sum() * (right**2).sum())
    return float((left * right).sum()) / math.sqrt(ordered) if ordered else math.nan


def roc_area(scores: Floats, positive: Bools) -> float:
    """Return the area under the ROC curve: the probability that a positive has a higher score than a negative, ties
    counting half. Not a number without both kinds."""
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return math.nan
    values, place = np.unique(scores, return_inverse=True)
    each_up = np.bincount(place, weights=positive, minlength=len(values))
    each_down = np.bincount(place, weights=~positive, minlength=len(values))
    below = np.cumsum(each_down) - each_down
    return float((each_up * (below + 0.5 * each_down)).sum() / (ups * downs))


def scale_of(gpus: float, limits: tuple[int, ...]) -> str:
    """Return the range of GPUs that a run belongs to, e.g. "9-64", for the upper ends `limits`."""
    for low, high in pairwise((0, *limits)):
        if gpus <= high:
            return f"{low + 1}-{high}"
    return f"{limits[-1] + 1}+"


SURELY_NOT, SURELY = 0.1, 0.9


@record
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


@record
class ErrorGroup:
    """Errors of the runs of one group: median and mean of |predicted / measured - 1|, quantiles of measured over
    predicted, the share of runs inside the 80 % interval, and Kendall's tau averaged over `sweeps` of strategies."""

    name: str
    runs: int
    median_error: float
    mean_error: float
    ratio_p10: float
    ratio_p50: float
    ratio_p90: float
    coverage: float | None = None
    tau: float | None = None
    sweeps: int = 0


@record
class Macro:
    """Averages over sources, each with the same weight, of what `ErrorGroup` has of each; tau over the sources that
    have sweeps. `name` says which way of predicting."""

    name: str
    sources: int
    median_error: float
    mean_error: float
    coverage: float | None
    tau: float | None


@record
class Pairs:
    """Columns [N] of predicted and measured figures; numbers of sweeps and of the strategies in them; whether a
    measurement is inside its interval."""

    predicted: Floats
    measured: Floats
    sweeps: Ints | None = None
    strategies: Ints | None = None
    inside: Bools | None = None

    def take(self, places: Ints) -> Pairs:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return Pairs(**{name: getattr(self, name)[places] for name in given})


def groups_of(pairs: Pairs, names: Sequence[str]) -> tuple[ErrorGroup, ...]:
    """Return the groups of runs of one name, those with most runs first."""
    labels, codes = np.unique([name or NAMELESS for name in names], return_inverse=True)
    groups = [group_of(str(labels[codes[mine[0]]]), pairs.take(mine)) for mine in places_by_value(codes)]
    return tuple(sorted(groups, key=lambda group: (-group.runs, group.name)))


def group_of(name: str, pairs: Pairs) -> ErrorGroup:
    errors = absolute_errors(pairs.predicted, pairs.measured)
    p10, p50, p90 = np.percentile(pairs.measured / pairs.predicted, [10, 50, 90])
    taus = _taus(pairs)
    return ErrorGroup(
        name=name,
        runs=len(errors),
        median_error=float(np.median(errors)),
        mean_error=float(np.mean(errors)),
        ratio_p10=float(p10),
        ratio_p50=float(p50),
        ratio_p90=float(p90),
        coverage=None if pairs.inside is None else float(np.mean(pairs.inside)),
        tau=float(np.mean(taus)) if taus else None,
        sweeps=len(taus),
    )


def _taus(pairs: Pairs) -> list[float]:
    """Return the rank correlation in every sweep of four different strategies or more, repeated runs of one averaged.
    Where all predictions of a sweep are the same, they say nothing of its order: 0."""
    if pairs.sweeps is None or pairs.strategies is None:
        return []
    taus = []
    for places in places_by_value(pairs.sweeps):
        same = places_by_value(pairs.strategies[places])
        if len(same) < SMALLEST_SWEEP:
            continue
        predicted = np.array([pairs.predicted[places[mine]].mean() for mine in same])
        measured = np.array([pairs.measured[places[mine]].mean() for mine in same])
        tau = kendall_tau(predicted, measured)
        if np.ptp(measured) > 0.0:
            taus.append(0.0 if math.isnan(tau) else tau)
    return taus


def macro_of(name: str, sources: Sequence[ErrorGroup]) -> Macro:
    taus = [group.tau for group in sources if group.tau is not None]
    covered = [group.coverage for group in sources if group.coverage is not None]
    return Macro(
        name=name,
        sources=len(sources),
        median_error=float(np.mean([group.median_error for group in sources])),
        mean_error=float(np.mean([group.mean_error for group in sources])),
        coverage=float(np.mean(covered)) if covered else None,
        tau=float(np.mean(taus)) if taus else None,
    )
