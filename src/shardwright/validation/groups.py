"""Errors of groups of runs, and their averages over sources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, places_by_value
from shardwright.validation.metrics import absolute_errors, kendall_tau

SMALLEST_SWEEP = 4
NAMELESS = "not stated"


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Macro:
    """Averages over sources, each with the same weight, of what `ErrorGroup` has of each; tau over the sources that
    have sweeps. `name` says which way of predicting."""

    name: str
    sources: int
    median_error: float
    mean_error: float
    coverage: float | None
    tau: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Columns [N] of predicted and measured figures; numbers of sweeps and of the strategies in them; whether a
    measurement is inside its interval."""

    predicted: Floats
    measured: Floats
    sweeps: Ints | None = None
    strategies: Ints | None = None
    inside: Bools | None = None

    def take(self, places: Ints) -> Pairs:
        """Return the pairs at some places."""
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
