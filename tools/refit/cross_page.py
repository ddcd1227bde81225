"""The section of `docs/accuracy.md` on predictions of runs that the calibration had not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tools.refit.crossvalidate import LearningPoint
from tools.refit.training import Trained

from shardwright.arrays import Floats
from shardwright.reports.accuracy import markdown_table
from shardwright.reports.validation import DIMENSION_WORDS, NONE, number, percent
from shardwright.validation.case import Case
from shardwright.validation.outcome import NO_REASON, RECOMPUTE_WORDS, Outcome, RunPrediction, reasons, sweep_outliers
from shardwright.validation.summary import Summary, summarise

COMMAND = "python -m tools.refit overheads"
LARGEST = 0.4
INTRODUCTION = """Each calibration here is fitted without the runs that it predicts. *In domain*: ten folds, near
duplicates (same source, model, GPU, strategy and micro-batch) in the same one. *Source left out*: all runs of a
publication. *GPU type left out*, *512 GPUs and more left out*: as they say. Operators and collectives are measured
alone and never see a training run. "Averaged" gives every source the same weight. The widths of the intervals
are made without the source of a run as well."""
CURVE = """The learning curve: sources drawn at random (five draws each), error on the sources that were not drawn, in
the linear picture of the fit."""


def cross_page(cases: Sequence[Case], training: Trained, curve: Sequence[LearningPoint]) -> str:
    """Return the section as Markdown."""
    summaries = {
        held.protocol: summarise(held_out_outcomes(cases, training, place))
        for place, held in enumerate(training.held_out)
        if not np.isnan(held.seconds).all()
    }
    return "\n\n".join(
        [
            f"<!-- Written by `{COMMAND}`. -->",
            INTRODUCTION,
            _protocols(summaries),
            "Against the simple rivals, on the same runs, in domain:",
            _rivals(summaries["in domain"]),
            "By source:",
            _by("source", summaries),
            "By GPU:",
            _by("gpu", summaries),
            "By framework:",
            _by("framework", summaries),
            _largest(summaries["in domain"], held_out_outcomes(cases, training, 0)),
            CURVE,
            markdown_table(
                ("sources seen", "median error", "mean error"),
                [[f"{point.sources}", percent(point.median_error), percent(point.mean_error)] for point in curve],
            ),
        ]
    )


def held_out_outcomes(cases: Sequence[Case], training: Trained, place: int) -> list[Outcome]:
    """Return the outcomes of the cases that the protocol at `place` leaves out."""
    held_out, widths = training.held_out[place], training.widths[place]
    return [
        Outcome(run=replace(case.run, measured_mem_gb=None), case=case, predicted=_predicted(case, seconds, width))
        for case, seconds, width in zip(cases, held_out.seconds, widths, strict=True)
        if not np.isnan(seconds)
    ]


def _predicted(case: Case, seconds: float, width: Floats) -> RunPrediction:
    low, high = np.exp(width)
    level = 0 if case.plan is not None else int(case.row["recompute"])
    return RunPrediction(
        seconds=float(seconds),
        low_seconds=float(seconds * low),
        high_seconds=float(seconds * high),
        memory_bytes=0.0,
        fit_probability=1.0,
        recompute=RECOMPUTE_WORDS[level],
    )


def _protocols(summaries: dict[str, Summary]) -> str:
    rows = []
    for protocol, summary in summaries.items():
        macro, overall = summary.macro[0], summary.overall
        assert overall is not None
        rows.append(
            [
                protocol,
                f"{summary.timed:,}",
                f"{macro.sources}",
                percent(macro.median_error),
                percent(macro.mean_error),
                percent(macro.coverage),
                number(macro.tau),
                percent(overall.median_error),
                percent(overall.coverage),
            ]
        )
    header = ("protocol", "runs", "sources", "median error, averaged", "mean error, averaged", "inside, averaged")
    return markdown_table((*header, "tau, averaged", "median error of all runs", "inside of all runs"), rows)


def _rivals(summary: Summary) -> str:
    rows = [
        [macro.name, percent(macro.median_error), percent(macro.mean_error), number(macro.tau)]
        for macro in summary.macro
    ]
    return markdown_table(("predicted by", "median error", "mean error", "rank correlation"), rows)


def _by(dimension: str, summaries: dict[str, Summary]) -> str:
    names = [group.name for group in summaries["in domain"].by[dimension]]
    rows = []
    for name in names:
        row = [name]
        for place, summary in enumerate(summaries.values()):
            group = next((group for group in summary.by[dimension] if group.name == name), None)
            if place == 0 and group is not None:
                row += [f"{group.runs:,}", percent(group.coverage), number(group.tau)]
            row.append(NONE if group is None else percent(group.median_error))
        rows.append(row)
    return markdown_table((DIMENSION_WORDS.get(dimension, dimension), "runs", "inside", "tau", *summaries), rows)


def _largest(summary: Summary, outcomes: Sequence[Outcome]) -> str:
    """Return how many runs are off by more than 40 %, from which sources, and for how many no rule tells why."""
    outliers = sweep_outliers(outcomes)
    off, untold = [], 0
    for place, outcome in enumerate(outcomes):
        if outcome.error is not None and abs(outcome.error) > LARGEST:
            off.append(outcome)
            untold += reasons(outcome, outlier=place in outliers) == (NO_REASON,)
    sources: dict[str, int] = {}
    for outcome in off:
        sources[outcome.run.source] = sources.get(outcome.run.source, 0) + 1
    words = ", ".join(f"{name}: {count:,}" for name, count in sorted(sources.items(), key=lambda item: -item[1]))
    return (
        f"In domain, {len(off):,} of {summary.timed:,} runs are off by more than {LARGEST:.0%} ({words}); for "
        f"{untold:,} of them nothing that they publish tells why."
    )
