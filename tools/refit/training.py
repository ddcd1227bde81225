"""Calibration on published training runs, from the runs to the files that ship."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.refit.crossvalidate import HeldOutPredictions, cross_validated
from tools.refit.evidence import evidence_table, packed
from tools.refit.framework_table import figures_text, frameworks_csv
from tools.refit.intervals import held_out_ends, residuals, spreads
from tools.refit.overheads import CLOCK_NAMES, fitted

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import Efficiency, computes
from shardwright.cost.frameworks.overheads import Calibration, shipped
from shardwright.cost.trust.evidence import Published
from shardwright.cost.trust.interval import Spread
from shardwright.spec.catalog.frameworks import OWN
from shardwright.validation.case import Case, case_of
from shardwright.validation.facts import SkippedRunError
from shardwright.validation.runs import PublishedRun

QUALITIES = "AB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A calibration, the table of evidence, the causes of intervals and the factors of frameworks on them, with the
    held-out predictions behind them and, by protocol, the log errors at the ends of each case's interval, made without
    its source, [N, 2]."""

    calibration: Calibration
    evidence: Published
    causes: Mapping[str, Spread]
    factors: Mapping[str, Spread]
    held_out: tuple[HeldOutPredictions, ...]
    widths: tuple[Floats, ...]


def duplicates_left_out(runs: Sequence[PublishedRun]) -> tuple[PublishedRun, ...]:
    """Return the runs with one of each group of duplicates, the first."""
    seen: set[str] = set()
    kept = []
    for run in runs:
        if run.dup_group and run.dup_group in seen:
            continue
        seen.add(run.dup_group)
        kept.append(run)
    return tuple(kept)


def timed_cases(runs: Sequence[PublishedRun]) -> list[Case]:
    """Return the cases of the runs of good quality whose time is known; of the same measurement the first."""
    cases = []
    for run in duplicates_left_out(runs):
        if run.quality not in QUALITIES or not run.seconds:
            continue
        try:
            case = case_of(run)
        except SkippedRunError:
            continue
        if all(computes(pool.gpu, case.job.precision) for pool in case.pools):
            cases.append(case)
    return cases


def trained(cases: Sequence[Case], efficiency: Efficiency, calibration: Calibration | None = None) -> Trained:
    """Return the calibration that suits `cases` best, if none is given, and how well ones that had not seen them
    predict them."""
    calibration = fitted(cases, efficiency) if calibration is None else calibration
    held_out = cross_validated(cases, efficiency, calibration)
    protocols = [residuals(cases, held) for held in held_out]
    causes, factors = spreads(cases, protocols)
    return Trained(
        calibration=calibration,
        evidence=evidence_table(cases, held_out[0]),
        causes=causes,
        factors=factors,
        held_out=tuple(held_out),
        widths=tuple(held_out_ends(cases, protocols)),
    )


def judged(cases: Sequence[Case], efficiency: Efficiency) -> dict[str, tuple[Floats, Floats]]:
    """Return, by protocol, the seconds [N] of cases by constants that have not seen them, solved around those that
    ship, and the logarithms of the ends of their intervals, made without them, over the seconds [N, 2]."""
    held_out = cross_validated(cases, efficiency, shipped())
    ends = held_out_ends(cases, [residuals(cases, held) for held in held_out])
    return {held.protocol: (held.seconds, width) for held, width in zip(held_out, ends, strict=True)}


def shipped_files(training: Trained) -> dict[str, bytes]:
    """Return the files of the package that a fit makes anew, by their path in it."""
    frameworks = {
        name: ({} if name == OWN else figures_text(software, 4)) | figures_text(training.factors[name], 4)
        for name, software in training.calibration.frameworks.items()  # no run of our own is published
    }
    return {
        "spec/catalog/data/frameworks.csv": frameworks_csv(frameworks),
        "cost/frameworks/data/architectures.csv": _architectures(training.calibration),
        "cost/trust/data/evidence.npz": packed(training.evidence),
        "cost/trust/data/causes.csv": _causes(training.causes),
    }


def _architectures(calibration: Calibration) -> bytes:
    lines = [",".join(("architecture", *CLOCK_NAMES))]
    for name, clocks in sorted(calibration.architectures.items()):
        lines.append(",".join((name, *figures_text(clocks, 4).values())))
    return ("\n".join(lines) + "\n").encode()


def _causes(causes: Mapping[str, Spread]) -> bytes:
    lines = [",".join(("cause", "low", "high"))]
    for name, spread in causes.items():
        lines.append(",".join((name, *figures_text(spread, 4).values())))
    return ("\n".join(lines) + "\n").encode()
