"""How good predictions are, of seconds and of what fits, and the errors of many outcomes: over all, by group, against
simple rivals, in memory, and in saying what fits."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, places_by_value
from shardwright.records import record
from shardwright.validation.case import Case, ideal_seconds
from shardwright.validation.facts import Skip
from shardwright.validation.outcome import Outcome, Reason, memory_kind, reasons, sweep_of, sweep_outliers

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


SCALES = (8, 64, 512)
WORST, WORST_OF_A_SOURCE = 30, 5

ROOFLINE_EFFICIENCY = 0.5  # of the dense peak


@record
class Worst:
    """A run with one of the largest errors, measured over predicted, what it is, and the likely reasons."""

    row_id: str
    what: str
    ratio: float
    reasons: tuple[Reason, ...]


@record
class Summary:
    """What a validation found. `overall` and the groups of `by` (by dimension; most runs first) are over measured,
    predicted runs without duplicates; `macro` has Shardwright first, then its rivals; `memory` is by kind of
    measurement, in bytes; `skipped` counts reasons."""

    rows: int
    predicted: int
    timed: int
    duplicates: int
    skipped: tuple[tuple[Skip, int], ...]
    overall: ErrorGroup | None
    macro: tuple[Macro, ...]
    by: Mapping[str, tuple[ErrorGroup, ...]]
    memory: tuple[ErrorGroup, ...]
    fits: Fits
    worst: tuple[Worst, ...]


def _gpu(outcome: Outcome) -> str:
    case = outcome.case
    return outcome.run.gpu if case is None or case.plan is not None else case.pool.gpu.name


DIMENSIONS: Mapping[str, Callable[[Outcome], str]] = {
    "source": lambda outcome: outcome.run.source,
    "gpu": _gpu,
    "framework": lambda outcome: outcome.case.job.framework if outcome.case else outcome.run.framework,
    "precision": lambda outcome: outcome.case.job.precision if outcome.case else outcome.run.precision,
    "scale": lambda outcome: scale_of(outcome.run.n_gpus or 0.0, SCALES),
    "model": lambda outcome: outcome.case.model.name if outcome.case else outcome.run.model,
}


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """Return the summary of outcomes, those of failed runs among them."""
    counted = [outcome for outcome in outcomes if outcome.predicted is not None and outcome.counted]
    timed = [outcome for outcome in counted if outcome.ratio is not None]
    skipped = Counter(outcome.skipped for outcome in outcomes if outcome.skipped is not None)
    overall, macro, by = _times(timed) if timed else (None, (), {})
    return Summary(
        rows=len(outcomes),
        predicted=sum(outcome.predicted is not None for outcome in outcomes),
        timed=len(timed),
        duplicates=sum(not outcome.counted for outcome in outcomes),
        skipped=tuple(sorted(skipped.items(), key=lambda item: (-item[1], item[0].words))),
        overall=overall,
        macro=macro,
        by=by,
        memory=_memory(counted),
        fits=_fits(counted),
        worst=_worst(timed),
    )


def _times(timed: Sequence[Outcome]) -> tuple[ErrorGroup, tuple[Macro, ...], dict[str, tuple[ErrorGroup, ...]]]:
    measured = np.array([outcome.measured_seconds for outcome in timed], dtype=float)
    cases = [outcome.case for outcome in timed if outcome.case is not None]
    seconds, low, high = (
        np.array([getattr(outcome.predicted, name) for outcome in timed])
        for name in ("seconds", "low_seconds", "high_seconds")
    )
    sweeps = [sweep_of(outcome) for outcome in timed]
    pairs = Pairs(
        predicted=seconds,
        measured=measured,
        sweeps=_codes(sweeps),
        strategies=_codes([(*sweep, *_strategy(case)) for sweep, case in zip(sweeps, cases, strict=True)]),
        inside=covered(low, high, measured),
    )
    by = {
        dimension: groups_of(pairs, [name_of(outcome) for outcome in timed])
        for dimension, name_of in DIMENSIONS.items()
    }
    by["scale"] = tuple(sorted(by["scale"], key=lambda group: int(re.split(r"\D", group.name)[0])))
    levels = [outcome.predicted.recompute for outcome in timed if outcome.predicted is not None]
    rivals = {
        "constant MFU of the other sources": constant_mfu_seconds(cases, measured),
        "roofline at half of the peak": roofline_seconds(cases, levels),
    }
    sources = [outcome.run.source for outcome in timed]
    macro = [macro_of("Shardwright", by["source"])]
    for name, other in rivals.items():
        macro.append(macro_of(name, groups_of(replace(pairs, predicted=other, inside=None), sources)))
    return group_of("all runs", pairs), tuple(entry for entry in macro if math.isfinite(entry.median_error)), by


def _strategy(case: Case) -> tuple[object, ...]:
    """Return what tells a strategy from others of its sweep."""
    return (*case.row.values(), case.open_recompute) if case.plan is None else (repr(case.plan.replicas),)


def _codes(keys: Sequence[tuple[object, ...]]) -> Ints:
    """Return a number for each key, the same for the same."""
    known: dict[tuple[object, ...], int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


def _memory(counted: Sequence[Outcome]) -> tuple[ErrorGroup, ...]:
    known = [outcome for outcome in counted if outcome.measured_bytes]
    if not known:
        return ()
    predicted = np.array([outcome.predicted.memory_bytes for outcome in known if outcome.predicted is not None])
    measured = np.array([outcome.measured_bytes for outcome in known], dtype=float)
    names = [f"{memory_kind(outcome.run)}; {outcome.run.source or NAMELESS}" for outcome in known]
    return groups_of(Pairs(predicted=predicted, measured=measured), names)


def _fits(counted: Sequence[Outcome]) -> Fits:
    known = [outcome for outcome in counted if outcome.failed or outcome.ratio or outcome.measured_bytes]
    failed = np.array([outcome.failed for outcome in known], dtype=bool)
    chance = [outcome.predicted.fit_probability for outcome in known if outcome.predicted is not None]
    return fits_of(np.array(chance), failed)


def _worst(timed: Sequence[Outcome]) -> tuple[Worst, ...]:
    """Return the runs with the largest |log(measured / predicted)|, a few of each source at most."""
    outliers = sweep_outliers(timed)
    off = np.array([abs(math.log(outcome.ratio or 1.0)) for outcome in timed])
    taken: Counter[str] = Counter()
    worst: list[Worst] = []
    for place in np.argsort(-off, kind="stable"):
        outcome = timed[place]
        taken[outcome.run.source] += 1
        if taken[outcome.run.source] <= WORST_OF_A_SOURCE and len(worst) < WORST:
            why = reasons(outcome, outlier=int(place) in outliers)
            what = f"{outcome.run.model}, {outcome.run.n_gpus:.0f} × {_gpu(outcome)}, {outcome.strategy}".rstrip(", ")
            worst.append(Worst(row_id=outcome.run.row_id, what=what, ratio=outcome.ratio or math.nan, reasons=why))
    return tuple(worst)


def constant_mfu_seconds(cases: Sequence[Case], seconds: Floats) -> Floats:
    """Return the seconds of each case at one constant MFU, [N]: the median, over all *other* sources, of the median MFU
    of their runs, so that a source says nothing about itself. Not a number with a single source. `seconds` are the
    measured ones."""
    ideal = np.array([ideal_seconds(case) for case in cases])
    sources = np.array([case.run.source for case in cases])
    names = np.unique(sources)
    medians = np.array([np.median((ideal / seconds)[sources == name]) for name in names])
    alone = len(names) == 1
    elsewhere = {name: np.nan if alone else float(np.median(medians[names != name])) for name in names}
    return np.asarray(ideal / np.array([elsewhere[name] for name in sources]))


def roofline_seconds(cases: Sequence[Case], recompute: Sequence[str]) -> Floats:
    """Return the seconds of each case if every GPU computed at half of its dense peak, full recomputation and the
    bubble of the pipeline included, communication not, [N]. A pipeline of p stages, v virtual ones each, idles
    (p - 1) / (v m) of the time of its m micro-batches (D. Narayanan et al., SC21, section 2.2)."""
    ideal = np.array([ideal_seconds(case) for case in cases])
    again = np.where(np.array(recompute) == "full", 4.0 / 3.0, 1.0)
    bubble = np.array([1.0 + _bubble(case) for case in cases])
    return np.asarray(ideal * again * bubble / ROOFLINE_EFFICIENCY)


def _bubble(case: Case) -> float:
    row = case.row
    if case.plan is not None:
        return max((len(replica.stages) - 1.0) / replica.micro_batches for replica in case.plan.replicas)
    micro_batches = case.job.global_batch / (row["dp"] * row["micro_batch"])
    return float((row["pp"] - 1.0) / (row["vpp"] * micro_batches))
