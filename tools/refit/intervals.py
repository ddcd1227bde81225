"""The width of intervals, from the errors of predictions that had not seen the runs; `python -m tools.refit intervals`.

The causes of `cost.trust.interval` are found by coordinate descent on the pinball loss of an end of the interval, over
a grid, in turns with the factors of frameworks on them: quantiles that lean on 1 as far as a framework has few sources.
A source weighs as the square root of its runs, at most `HEARD` of them. The quantile is above nine tenths, as the fit
sees what it judges: with it, about eight in ten runs of a source that it had not seen are inside (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tools.refit.crossvalidate import HeldOutPredictions, groups
from tools.refit.processes import mapped
from tools.refit.scores import healthy

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.trust.evidence import NAMES, Conditions, lack, lacking, seen_in
from shardwright.cost.trust.interval import CAUSES, Spread
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.validation.case import Case
from shardwright.validation.forecast import conditions_of_case

QUANTILE = 0.93
HEARD = 30.0  # runs of a source
PSEUDO_SOURCES = 4.0  # of all frameworks together, that each framework's factor leans on
LEAST_FACTOR = 0.05
TURNS, SWEEPS = 2, 30
GRID = np.concatenate([[0.0], np.exp(np.linspace(np.log(0.01), np.log(1.2), 40))]) ** 2
PENALTY = 0.001  # of a cause per unit of its log error: of equal fits the one without it


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Held-out predictions of one protocol: log(measured / predicted), NaN where it leaves a case in, [N]; how much of
    each cause is present, [N, 4]; and whether a framework was seen, [N]."""

    errors: Floats
    present: Floats
    known: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Squares of the log errors of each cause at one end of the interval, [4], and the factors of frameworks."""

    squares: Floats
    factors: Mapping[str, float]

    def ends(self, residuals: Residuals, frameworks: np.ndarray) -> Floats:
        """Return how far the end is from the prediction, as a log error above 0, [N]."""
        factors = np.array([self.factors.get(name, 1.0) for name in frameworks.tolist()])
        return np.asarray(np.where(residuals.known, factors, 1.0) * np.sqrt(residuals.present @ self.squares))


def residuals(cases: Sequence[Case], held: HeldOutPredictions) -> Residuals:
    """Return the errors of a protocol's predictions, each beside what the runs lack that it had seen."""
    settings = [conditions_of_case(case) for case in cases]
    names = np.array([[getattr(setting, name) for name in NAMES] for setting in settings])
    gpus = np.array([setting.gpus for setting in settings], dtype=float)
    sources = np.array([case.run.source for case in cases])
    present, known = np.zeros((len(cases), len(CAUSES))), np.ones(len(cases), dtype=bool)
    for left_out in groups(cases, held.protocol):
        kept = np.setdiff1d(np.arange(len(cases)), left_out)
        seen, heard = seen_in(names[kept], gpus[kept]), set(sources[kept].tolist())
        memo: dict[Conditions, tuple[float, bool]] = {}
        for index in left_out.tolist():
            setting = settings[index]
            if setting not in memo:
                memo[setting] = lack(setting, seen), "framework" not in lacking(setting, seen)
            missing, known[index] = memo[setting]
            present[index] = 1.0, sources[index] not in heard, missing, setting.experts
    measured = np.array([case.run.seconds for case in cases], dtype=float)
    return Residuals(errors=np.log(measured / held.seconds), present=present, known=known)


def spreads(cases: Sequence[Case], protocols: Sequence[Residuals]) -> tuple[dict[str, Spread], dict[str, Spread]]:
    """Return the interval that ships, from all runs: the log errors of each cause, and the factors of frameworks."""
    low, high = fitted_widths(cases, protocols, np.ones(len(cases), dtype=bool))
    ends = zip(CAUSES, np.sqrt(low.squares), np.sqrt(high.squares), strict=True)
    causes = {cause: Spread(low=float(below), high=float(above)) for cause, below, above in ends}
    names = sorted(framework_names())
    return causes, {name: Spread(low=low.factors.get(name, 1.0), high=high.factors.get(name, 1.0)) for name in names}


def held_out_ends(cases: Sequence[Case], protocols: Sequence[Residuals]) -> list[Floats]:
    """Return, by protocol, the log errors at the ends of each case's interval, [N, 2], made without its source."""
    sources = np.array([case.run.source for case in cases])
    frameworks = np.array([case.job.framework for case in cases])
    ends = [np.full((len(cases), 2), np.nan) for _ in protocols]
    names = sorted(set(sources.tolist()))
    widths = mapped(lambda name: fitted_widths(cases, protocols, sources != name), names)
    for name, (low, high) in zip(names, widths, strict=True):
        mine = sources == name
        for column, held in zip(ends, protocols, strict=True):
            column[mine, 0] = -low.ends(held, frameworks)[mine]
            column[mine, 1] = high.ends(held, frameworks)[mine]
    return ends


def fitted_widths(cases: Sequence[Case], protocols: Sequence[Residuals], chosen: Bools) -> tuple[Widths, Widths]:
    """Return the lower and the upper end of the interval, from the `chosen` cases that did not stall."""
    sources = np.unique(np.array([case.run.source for case in cases]), return_inverse=True)[1]
    frameworks = np.array([case.job.framework for case in cases])
    good = chosen & healthy(cases)
    rows = [np.flatnonzero(good & ~np.isnan(held.errors)) for held in protocols]
    errors = np.concatenate([held.errors[index] for held, index in zip(protocols, rows, strict=True)])
    present = np.concatenate([held.present[index] for held, index in zip(protocols, rows, strict=True)])
    known = np.concatenate([held.known[index] for held, index in zip(protocols, rows, strict=True)])
    weights = np.concatenate([_weights(sources[index]) for index in rows])
    every = np.concatenate(rows)
    names = np.where(known, frameworks[every], "")
    low, high = (_end(sign * errors, present, weights, names, sources[every]) for sign in (-1.0, 1.0))
    return low, high


def _weights(sources: Ints) -> Floats:
    """Return the weight of each run of a protocol, [N], by the number of the source."""
    counts = np.bincount(sources)[sources]
    return np.asarray(np.sqrt(np.minimum(counts, HEARD)) / counts)


def _end(errors: Floats, present: Floats, weights: Floats, frameworks: np.ndarray, sources: Ints) -> Widths:
    factors = dict.fromkeys(np.unique(frameworks).tolist(), 1.0)
    squares = np.zeros(present.shape[1])
    for _ in range(TURNS):
        scale = np.array([factors[name] for name in frameworks.tolist()])
        squares = _squares(errors / scale, present, weights * scale)
        ratio = errors / np.sqrt(np.maximum(present @ squares, GRID[1]))
        for name in factors:
            mine = frameworks == name
            if name:
                lean = PSEUDO_SOURCES / (len(np.unique(sources[mine])) + PSEUDO_SOURCES)
                factors[name] = max(weighted_quantile(ratio[mine], weights[mine], QUANTILE), LEAST_FACTOR) ** (1 - lean)
    return Widths(squares=squares, factors={name: float(factor) for name, factor in factors.items() if name})


def _squares(errors: Floats, present: Floats, weights: Floats) -> Floats:
    """Return the squares of causes, [4], with which the end of the interval is nearest to the quantile of `errors`."""
    squares = np.zeros(present.shape[1])
    before = np.inf
    for _ in range(SWEEPS):
        least = before
        for cause in range(len(squares)):
            rest = present @ squares - present[:, cause] * squares[cause]
            ends = np.sqrt(np.maximum(rest + GRID[:, None] * present[:, cause], 0.0))
            beyond = errors - ends
            loss = np.where(beyond > 0.0, QUANTILE * beyond, (QUANTILE - 1.0) * beyond) @ weights
            loss += PENALTY * weights.sum() * np.sqrt(GRID)
            squares[cause], least = GRID[int(loss.argmin())], float(loss.min())
        if before - least < 1e-9:
            break
        before = least
    return squares


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the value that so large a share of the weights is below."""
    order = np.argsort(values, kind="stable")
    below = (np.cumsum(weights[order]) - 0.5 * weights[order]) / weights.sum()
    return float(np.interp(share, below, values[order]))
