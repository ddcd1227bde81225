"""How good held-out predictions are, source by source: errors, intervals, order; and whether they became better.

Every source counts alike. A source, not a run, is what is drawn anew in the bootstrap: runs of one source err alike.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from shardwright.arrays import Bools, Floats, places_by_value
from shardwright.validation.case import Case
from shardwright.validation.outcome import Outcome, sweep_of
from shardwright.validation.summary import absolute_errors, covered, kendall_tau

STALLED = "stalled"
LEAST_RUNS = 9  # of a source whose median says something; chosen, 5 to 12
LEAST_SWEEP = 4
DRAWS, SEED, TAIL = 4000, 7, 5.0  # of the bootstrap, per cent on either side


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceScore:
    """The held-out predictions of one source under one protocol: medians and means of |predicted / measured - 1|, the
    share inside of the 80 % interval and its median high over low, and of its sweeps of strategies the mean rank
    correlation and the regret, by which the strategy predicted fastest is slower than the fastest; NaN without any."""

    protocol: str
    source: str
    runs: int
    median_error: float
    mean_error: float
    inside: float
    width: float
    tau: float
    regret: float


def healthy(cases: Sequence[Case]) -> Bools:
    """Return which cases are not known to have stalled, [N]."""
    return np.array([case.run.state != STALLED for case in cases])


def source_scores(
    protocol: str, cases: Sequence[Case], seconds: Floats, ends: Floats, kept: Bools
) -> tuple[SourceScore, ...]:
    """Return the scores of every source that a protocol holds out. `seconds` [N] are NaN where it does not, `ends`
    [N, 2] the logarithms of the ends of the intervals over them; `kept` says which runs count."""
    measured = np.array([case.run.seconds for case in cases], dtype=float)
    known = ~np.isnan(seconds) & kept
    names = np.array([case.run.source for case in cases])
    scores = []
    for name in sorted(set(names[known].tolist())):
        mine = np.flatnonzero(known & (names == name))
        errors = absolute_errors(seconds[mine], measured[mine])
        low, high = seconds[mine] * np.exp(ends[mine, 0]), seconds[mine] * np.exp(ends[mine, 1])
        tau, regret = _order([cases[index] for index in mine.tolist()], seconds[mine], measured[mine])
        scores.append(
            SourceScore(
                protocol=protocol,
                source=name,
                runs=len(mine),
                median_error=float(np.median(errors)),
                mean_error=float(np.mean(errors)),
                inside=float(np.mean(covered(low, high, measured[mine]))),
                width=float(np.median(high / low)),
                tau=tau,
                regret=regret,
            )
        )
    return tuple(scores)


def _order(cases: Sequence[Case], seconds: Floats, measured: Floats) -> tuple[float, float]:
    """Return rank correlation and regret, averaged over sweeps of four strategies or more; runs of one strategy count
    once, by their means."""
    sweeps: dict[tuple[object, ...], int] = {}
    codes = np.array([sweeps.setdefault(sweep_of(Outcome(run=case.run)), len(sweeps)) for case in cases])
    taus, regrets = [], []
    for places in places_by_value(codes):
        alike: dict[object, list[int]] = {}
        for place in places.tolist():
            case = cases[place]
            key = repr(case.plan.replicas) if case.plan else (*case.row.values(), case.open_recompute)
            alike.setdefault(key, []).append(place)
        if len(alike) < LEAST_SWEEP:
            continue
        ours, theirs = (np.array([column[twins].mean() for twins in alike.values()]) for column in (seconds, measured))
        tau = kendall_tau(ours, theirs)
        taus.append(0.0 if np.isnan(tau) else tau)
        regrets.append(float(theirs[ours.argmin()] / theirs.min() - 1.0))
    return (float(np.mean(taus)), float(np.mean(regrets))) if taus else (np.nan, np.nan)


def column(scores: Sequence[SourceScore], name: str, least: int = 1) -> Floats:
    """Return a figure of the sources with at least so many runs that have it, [S]."""
    values = np.array([getattr(score, name) for score in scores if score.runs >= least], dtype=float)
    return np.asarray(values[~np.isnan(values)])


def mean_range(values: Floats) -> tuple[float, float]:
    """Return the 90 % range of the mean of values, [S], by a bootstrap over them."""
    if not len(values):
        return np.nan, np.nan
    drawn = np.random.default_rng(SEED).integers(len(values), size=(DRAWS, len(values)))
    low, high = np.percentile(values[drawn].mean(axis=1), [TAIL, 100.0 - TAIL])
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """By how much the mean error of the sources of both became larger, as a share (below 0: better), its 90 % range by
    a bootstrap over sources drawn with both of their errors, and how many sources there are."""

    share: float
    low: float
    high: float
    sources: int


def change(before: Sequence[SourceScore], now: Sequence[SourceScore], name: str = "median_error") -> Change:
    """Return the paired change of a protocol's errors."""
    known = {score.source: getattr(score, name) for score in before}
    pairs = np.array([(known[score.source], getattr(score, name)) for score in now if score.source in known])
    if not len(pairs):
        return Change(share=np.nan, low=np.nan, high=np.nan, sources=0)
    drawn = pairs[np.random.default_rng(SEED).integers(len(pairs), size=(DRAWS, len(pairs)))].mean(axis=1)
    low, high = np.percentile(drawn[:, 1] / drawn[:, 0] - 1.0, [TAIL, 100.0 - TAIL])
    first, second = pairs.mean(axis=0)
    return Change(share=float(second / first - 1.0), low=float(low), high=float(high), sources=len(pairs))


def scores_csv(scores: Mapping[str, Sequence[SourceScore]]) -> str:
    """Return scores by protocol as a table, four digits each."""
    out = io.StringIO(newline="")
    names = [field.name for field in fields(SourceScore)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for rows in scores.values():
        for score in rows:
            values = [getattr(score, name) for name in names]
            writer.writerow([f"{value:.4g}" if isinstance(value, float) else value for value in values])
    return out.getvalue()


def read_scores(path: Path) -> dict[str, list[SourceScore]]:
    """Return the scores that a table holds, by protocol."""
    scores: dict[str, list[SourceScore]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            figures = {name: float(row[name]) for name in row if name not in ("protocol", "source", "runs")}
            score = SourceScore(protocol=row["protocol"], source=row["source"], runs=int(row["runs"]), **figures)
            scores.setdefault(score.protocol, []).append(score)
    return scores
