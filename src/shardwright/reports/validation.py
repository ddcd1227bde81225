"""Predicted against measured runs as tables: what a terminal and a page of documentation both show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from shardwright.reports.documents.ranking import VERSION
from shardwright.reports.section import Section, Table
from shardwright.reports.text.layout import WIDTH, labelled, paragraphs, table, wrapped
from shardwright.units import format_bytes, format_seconds
from shardwright.validation.outcome import Outcome
from shardwright.validation.summary import ErrorGroup, Fits, Macro, Summary, Worst
from shardwright.validation.validate import Validation

NONE = "–"
RUN_HEADER = (
    *("run", "model", "GPUs", "strategy", "predicted", "measured"),
    *("error", "memory", "memory, measured", "fits"),
)
LONGEST_NAME = 60
DIMENSION_WORDS = {"gpu": "GPU"}
WORST_TITLE = "Largest errors"
WORST_NOTE = (
    "By measured / predicted, at most five of a source. Reasons are rules on what a run publishes, no diagnosis."
)
SHOWN_RUNS, SHOWN_GROUPS, SHOWN_WORST, SHOWN_REASONS = 20, 12, 10, 8


def validation_text(validation: Validation, width: int = WIDTH) -> str:
    """Return the report of a validation for a terminal."""
    summary = validation.summary
    fits = fits_words(summary.fits)
    parts = [
        wrapped(heading(validation), "", width),
        _text(runs_section(validation.outcomes, SHOWN_RUNS), width),
        _text(rivals_section(summary.macro), width),
        *(_text(groups_section(name, summary.by[name], SHOWN_GROUPS), width) for name in summary.by),
        _text(memory_section(summary.memory, SHOWN_GROUPS), width),
        wrapped(fits, "", width) if fits else "",
        _worst_text(summary.worst[:SHOWN_WORST], width),
        _text(skipped_section(summary, SHOWN_REASONS), width),
    ]
    return paragraphs(parts)


def _text(section: Section, width: int) -> str:
    """Return a section, or nothing where its table has no rows."""
    shown = section.table
    if shown is None or not shown.rows:
        return ""
    lines = [section.title, wrapped(section.lead, "  ", width)] if section.lead else [section.title]
    return "\n".join([*lines, table(shown.columns, shown.rows, words=shown.words, spare=shown.spare, width=width)])


def heading(validation: Validation) -> str:
    """Return in a sentence or two what was predicted, and how well."""
    summary = validation.summary
    overall, macro = summary.overall, summary.macro[0] if summary.overall is not None else None
    words = (
        f"{validation.name}: {summary.rows:,} rows, {summary.predicted:,} predicted, {summary.timed:,} of them "
        "compared with a measured time"
    )
    words += f" ({summary.duplicates:,} duplicates left out)." if summary.duplicates else "."
    if overall is None or macro is None:
        return words
    errors = (
        f"{words} Median error {percent(overall.median_error)}, mean {percent(overall.mean_error)}, "
        f"{percent(overall.coverage)} inside the 80% interval"
    )
    averaged = (
        f"; averaged over {macro.sources} sources, median {percent(macro.median_error)}, "
        f"mean {percent(macro.mean_error)}, {percent(macro.coverage)} inside"
    )
    return f"{errors}{averaged if macro.sources > 1 else ''}."


def runs_section(outcomes: Sequence[Outcome], shown: int) -> Section:
    """Return predicted against measured, run by run, without columns that no run fills."""
    known = [outcome for outcome in outcomes if outcome.predicted is not None]
    rows = [_run_row(outcome) for outcome in known[:shown]]
    filled = [place for place in range(len(RUN_HEADER)) if any(row[place] != NONE for row in rows)]
    return Section(
        name="runs",
        title="Runs",
        lead=_cut(len(known), shown, "runs"),
        table=Table(
            columns=tuple(RUN_HEADER[place] for place in filled),
            rows=tuple(map(tuple, [[row[place] for place in filled] for row in rows])),
            words=("run", "model", "GPUs", "strategy"),
            spare=("memory, measured", "memory", "strategy", "fits"),
        ),
    )


def _run_row(outcome: Outcome) -> list[str]:
    predicted, run = outcome.predicted, outcome.run
    assert predicted is not None, "only predicted runs have a row"
    measured, memory = outcome.measured_seconds, outcome.measured_bytes
    return [
        shortened(run.row_id, 12),
        shortened(run.model, 24),
        shortened(f"{run.n_gpus:.0f} × {run.gpu}", 22),
        outcome.strategy,
        format_seconds(predicted.seconds),
        "failed" if outcome.failed else NONE if measured is None else format_seconds(measured),
        NONE if outcome.error is None else f"{outcome.error:+.0%}",
        format_bytes(predicted.memory_bytes),
        NONE if memory is None else format_bytes(memory),
        f"{predicted.fit_probability:.0%}",
    ]


def rivals_section(macro: Sequence[Macro]) -> Section:
    """Return Shardwright beside simple rivals."""
    rows = [
        [
            entry.name,
            str(entry.sources),
            percent(entry.median_error),
            percent(entry.mean_error),
            number(entry.tau),
            percent(entry.coverage),
        ]
        for entry in macro
    ]
    return Section(
        name="rivals",
        title="Against simple rivals",
        lead="The same runs, every source with the same weight; the error is |predicted / measured - 1|.",
        table=Table(
            columns=(
                "predicted by",
                "sources",
                "median error",
                "mean error",
                "rank correlation",
                "inside 80% interval",
            ),
            rows=tuple(map(tuple, rows)),
            words=("predicted by",),
        ),
    )


def groups_section(dimension: str, groups: Sequence[ErrorGroup], shown: int) -> Section:
    """Return the errors by one dimension; no rows where it has a single group."""
    name = DIMENSION_WORDS.get(dimension, dimension)
    return Section(
        name=f"by-{dimension}",
        title=f"By {name}",
        lead=_cut(len(groups), shown, "groups"),
        table=Table(
            columns=(name, "runs", "median error", "mean error", "p10", "p50", "p90", "inside", "tau", "sweeps"),
            rows=tuple(map(tuple, [_group_row(group) for group in groups[:shown] if len(groups) > 1])),
            words=(name,),
        ),
    )


def _group_row(group: ErrorGroup) -> list[str]:
    return [
        *_error_cells(group),
        percent(group.coverage),
        number(group.tau),
        str(group.sweeps or NONE),
    ]


def _error_cells(group: ErrorGroup) -> list[str]:
    ratios = (group.ratio_p10, group.ratio_p50, group.ratio_p90)
    return [
        shortened(group.name, LONGEST_NAME),
        f"{group.runs:,}",
        percent(group.median_error),
        percent(group.mean_error),
        *(f"{ratio:.2f}" for ratio in ratios),
    ]


def memory_section(groups: Sequence[ErrorGroup], shown: int) -> Section:
    """Return the errors of memory, by what was measured."""
    return Section(
        name="memory",
        title="Memory, by what was measured",
        lead="Predicted is the peak of the fullest GPU with the CUDA context; p10 to p90 are measured / predicted.",
        table=Table(
            columns=("measured", "runs", "median error", "mean error", "p10", "p50", "p90"),
            rows=tuple(map(tuple, [_error_cells(group) for group in groups[:shown]])),
            words=("measured",),
        ),
    )


def fits_words(fits: Fits) -> str:
    """Return how well the probability to fit is, in a sentence; nothing without runs that say."""
    below, above, area = fits.ran_below_tenth, fits.failed_above_nine_tenths, fits.roc_area
    parts = (
        "" if below is None else f"of {fits.ran:,} runs that ran, {below:.1%} have a probability below 10%",
        "" if above is None else f"of {fits.failed:,} that failed, {above:.1%} have one above 90%",
        "" if area is None else f"area under the ROC curve {area:.3f}",
    )
    words = "; ".join(part for part in parts if part)
    return f"Probability to fit in memory: {words}." if words else ""


def worst_section(entries: Sequence[Worst]) -> Section:
    """Return the runs with the largest errors, with likely reasons."""
    return Section(
        name="worst",
        title=WORST_TITLE,
        lead=WORST_NOTE,
        table=Table(
            columns=("run", "ratio", "what", "likely reasons"),
            rows=tuple(
                map(
                    tuple,
                    [
                        [
                            entry.row_id,
                            f"{entry.ratio:.2f}",
                            entry.what,
                            "; ".join(reason.words for reason in entry.reasons),
                        ]
                        for entry in entries
                    ],
                )
            ),
            words=("run", "what", "likely reasons"),
        ),
    )


def _worst_text(entries: Sequence[Worst], width: int) -> str:
    """Return the same with reasons in lines of their own, for they are long."""
    lines = [WORST_TITLE, wrapped(WORST_NOTE, "  ", width)]
    for entry in entries:
        words = f"{shortened(entry.row_id, 12)}: {entry.what}: {'; '.join(reason.words for reason in entry.reasons)}"
        lines.append(labelled(f"{entry.ratio:>8.2f}", words, width, column=8))
    return "\n".join(lines) if entries else ""


def skipped_section(summary: Summary, shown: int) -> Section:
    """Return why runs were not predicted."""
    return Section(
        name="skipped",
        title="Not predicted",
        lead=_cut(len(summary.skipped), shown, "reasons"),
        table=Table(
            columns=("rows", "reason"),
            rows=tuple(
                map(tuple, [[f"{count:,}", shortened(reason.words, 90)] for reason, count in summary.skipped[:shown]])
            ),
            words=("reason",),
        ),
    )


def _cut(count: int, shown: int, what: str) -> str:
    return f"The first {shown} of {count:,} {what}; --json has all." if count > shown else ""


def percent(share: float | None) -> str:
    """Return a share in percent, or a dash."""
    return NONE if share is None else f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def number(value: float | None) -> str:
    """Return a correlation, or a dash."""
    return NONE if value is None else f"{value:.2f}"


def shortened(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


Document = Mapping[str, object]


def validation_document(validation: Validation) -> Document:
    """Return what `validate --json` prints."""
    summary = validation.summary
    return {
        "version": VERSION,
        "runs": [_run(outcome) for outcome in validation.outcomes],
        "summary": asdict(summary)
        | {"skipped": [asdict(reason) | {"count": count} for reason, count in summary.skipped]},
    }


def _run(outcome: Outcome) -> Document:
    predicted, run = outcome.predicted, outcome.run
    if predicted is None:
        return {"row_id": run.row_id, "skipped": None if outcome.skipped is None else asdict(outcome.skipped)}
    return {
        "row_id": run.row_id,
        "predicted_seconds": predicted.seconds,
        "interval": [predicted.low_seconds, predicted.high_seconds],
        "measured_seconds": outcome.measured_seconds,
        "error": outcome.error,
        "predicted_memory_bytes": predicted.memory_bytes,
        "measured_memory_bytes": outcome.measured_bytes,
        "fit_probability": predicted.fit_probability,
        "recompute": predicted.recompute,
        "assumed": [str(assumed) for assumed in outcome.assumed],
        "duplicate": not outcome.counted,
        "failed": outcome.failed,
        "source": run.source,
        "model": run.model,
        "gpu": run.gpu,
        "gpus": run.n_gpus,
    }
