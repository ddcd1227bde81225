"""A validation as a page of documentation in Markdown."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from shardwright.reports.section import Section
from shardwright.reports.svg.scatter import Point, scatter
from shardwright.reports.text.layout import paragraphs
from shardwright.reports.validation import (
    fits_words,
    groups_section,
    heading,
    memory_section,
    rivals_section,
    skipped_section,
    worst_section,
)
from shardwright.spec.text.reading import read_text
from shardwright.validation.validate import PUBLISHED, Validation

ALL, LONGEST_LIST = 10_000, 25
CROSS_VALIDATION_FILE = "cross-validation.md"
COMMAND = "shardwright validate --markdown docs/accuracy.md --plot docs/accuracy.svg"
IN_SAMPLE = """The runs come from public repositories; each row of the table in the package names repository, commit and
file. Their configurations are published in full (quality A) or lack one or two secondary settings (quality B), which
are then taken from the framework's defaults; where recomputation is not published, it is the least that fits.

**Read these figures as in-sample.** The times of operators and collectives come from measurements of operators and
collectives alone. But what each framework adds (host time, link efficiency, fused or unfused kernels) and the width of
the intervals are fitted to the runs of this very table. How well the model does on runs that it was not fitted to is in
the section on cross-validation, and that is the figure to quote."""
OWN = "`docs/how-to-validate.md` says which columns a file needs and how to read the tables."
RIVALS = """The constant MFU of a source is fitted to all other sources (the median of their medians). The roofline
counts the FLOPs of the model, of full recomputation and of the pipeline's bubble at half of the dense peak. Rank
correlation is Kendall's tau among the strategies of one model, GPU, GPU count and batch, four or more, averaged over
such sweeps and then over sources; a rival that gives all strategies of a sweep the same time has 0 there."""
GROUPS = """Runs of the same measurement count once. Errors are |predicted / measured - 1|, p10 to p90 quantiles of
measured / predicted, "inside" is the share within the 80% interval, tau the rank correlation over that many sweeps."""
MEMORY = """Predicted is what the run publishes: bytes of tensors (allocated), of the allocator (reserved) or of the
process, on the rank that it names or the fullest. p10 to p90 are quantiles of measured / predicted."""
FITS = """Failed runs are configurations that their authors report as failed: most ran out of memory, but crashes and
time-outs are not told apart, so that a run which should fit may well have failed for another reason."""


def accuracy_page(validation: Validation, page: Path, plot: Path | None) -> str:
    """Return the page that is to be written to `page`, with the picture in `plot`, if any. Includes the text of
    cross-validation.md beside it, where that exists."""
    summary = validation.summary
    published = validation.name == PUBLISHED
    fits = fits_words(summary.fits)
    by_group = (
        groups_section(dimension, groups, LONGEST_LIST if dimension == "model" else ALL)
        for dimension, groups in summary.by.items()
    )
    parts = [
        "# How far to trust the figures" if published else f"# Accuracy on {Path(validation.name).name}",
        f"<!-- Written by `{COMMAND}`; edit reports/accuracy.py instead. -->" if published else "",
        _cross_validation(page, expected=published),
        "## In sample" if published else "",
        heading(validation),
        IN_SAMPLE if published else OWN,
        "" if plot is None else _picture(page, plot),
        _markdown(rivals_section(summary.macro), RIVALS),
        f"## Errors by group\n\n{GROUPS}" if summary.by else "",
        *(_markdown(section, level=3) for section in by_group),
        _markdown(memory_section(summary.memory, ALL), MEMORY),
        f"## What fits\n\n{fits}\n\n{FITS}" if fits else "",
        _markdown(worst_section(summary.worst)),
        _markdown(skipped_section(summary, LONGEST_LIST)),
    ]
    return paragraphs(parts) + "\n"


def _picture(page: Path, plot: Path) -> str:
    link = Path(os.path.relpath(plot.resolve(), page.resolve().parent)).as_posix()
    return f"![Predicted against measured time of an iteration, the band is 20 %]({link})"


def accuracy_plot(validation: Validation) -> str:
    """Return predicted against measured times, coloured by framework, those with most runs first, as SVG. Raises
    ValueError where no run has both."""
    series: dict[str, list[Point]] = {group.name: [] for group in validation.summary.by.get("framework", ())}
    for outcome in validation.outcomes:
        case, predicted, measured = outcome.case, outcome.predicted, outcome.measured_seconds
        if case is not None and predicted is not None and measured is not None and outcome.counted:
            series[case.job.framework].append((measured, predicted.seconds))
    return scatter(series, f"{validation.summary.timed:,} runs, predicted against measured")


def _cross_validation(page: Path, *, expected: bool) -> str:
    """Return the section that `python -m tools.refit` writes to a file beside the page. Where there is none,
    say so if it is `expected`."""
    source = page.with_name(CROSS_VALIDATION_FILE)
    if source.is_file():
        return f"## Cross-validation\n\n{read_text(source).strip()}"
    return "## Cross-validation\n\nNot done for these figures." if expected else ""


def _markdown(section: Section, lead: str | None = None, *, level: int = 2) -> str:
    """Return a section with a lead of its own, or nothing where its table has no rows."""
    table = section.table
    if table is None or not table.rows:
        return ""
    words = section.lead.replace("; --json has all", "") if lead is None else lead
    parts = [f"{'#' * level} {section.title}", words, markdown_table(table.columns, table.rows, words=table.words)]
    return paragraphs(parts)


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, words: Collection[str] | None = None
) -> str:
    """Return a table; the columns named in `words`, else the first, are flush left, the others right."""
    left = header[:1] if words is None else words
    marks = ["---" if name in left else "---:" for name in header]
    return "\n".join(
        f"| {' | '.join(cell.strip().replace('|', '/') for cell in row)} |" for row in (header, marks, *rows)
    )
