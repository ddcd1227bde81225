"""Errors of many outcomes: over all, by group, against simple rivals, in memory, and in saying what fits."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.records import record
from shardwright.validation.case import Case, ideal_seconds
from shardwright.validation.facts import Skip
from shardwright.validation.metrics import (
    NAMELESS,
    ErrorGroup,
    Fits,
    Macro,
    Pairs,
    covered,
    fits_of,
    group_of,
    groups_of,
    macro_of,
    scale_of,
)
from shardwright.validation.outcome import Outcome, memory_kind
from shardwright.validation.reasons import Reason, reasons, sweep_of, sweep_outliers

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
