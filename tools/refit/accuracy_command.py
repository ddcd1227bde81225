"""`python -m tools.refit accuracy`: every protocol, beside the release before and the aims."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardwright.commands import option

if TYPE_CHECKING:
    from tools.refit.scores import SourceScore

BASELINE = Path(__file__).with_name("data") / "baseline.csv"
# The hardest first, with what each is to reach. Changes are of the mean over sources of the median error.
AIMS: Mapping[str, str] = {
    "framework left out": "tau ≥ .75",
    "model family left out": "30 % lower",
    "GPU type left out": "20 % lower; inside 75–85 % at 2.1",
    "source left out": "20 % lower; inside 75–85 % at 1.8",
    "mixed GPUs left out": "not higher; tau ≥ .6",
    "512 GPUs and more left out": "not higher",
    "in domain": "≤ 5 % (9 runs and more); tau ≥ .85; inside 75–85 % at 1.4",
}
HEADER = (
    *("protocol", "runs", "sources", "median error", "90 %", "of sources with 9 runs", "mean error"),
    *("inside", "high / low", "tau", "regret", "change", "90 %", "aim"),
)

INTRODUCTION = """Every run is predicted by constants that have not seen it, solved anew from the others in the linear
picture around those that ship; the hardest protocol first. Operators and collectives are measured alone and never see
a training run. A source counts once, whatever its runs; errors are medians (means) of |predicted / measured - 1| of a
source, their 90 % ranges a bootstrap over sources. *Inside* is the share of measurements within the 80 % interval,
*tau* the rank correlation and *regret* the time lost by the predicted choice within a sweep of strategies. *Change* is
paired over sources with the release before (below 0: better). A run is stalled where it took more than 2.4 times its
prediction though its sweep does not. What one to ten runs of the same site are worth:
[how to calibrate](how-to-calibrate.md); what was tried and is not in the model:
[decision 9](decisions/0009-terms-of-the-fit.md)."""


def accuracy(
    against: Annotated[
        Path, option("--against", metavar="FILE", help="Scores to compare with; default: those of the release before.")
    ] = BASELINE,
    out: Annotated[Path | None, option("--out", "-o", metavar="FILE", help="Write the scores by source here.")] = None,
    page: Annotated[Path | None, option("--page", metavar="FILE", help="Write the tables here, as Markdown.")] = None,
) -> None:
    """Predict every published run by constants that have not seen it, under every protocol, and print the errors
    beside those of the release before and the aims; some minutes. Constants are solved anew in the linear picture
    around those that ship. The change is paired over sources, with its 90 % range by a bootstrap over them.

    A calibration on one run of a site is judged by `python -m benchmarks.calibration`."""
    from tools.refit.remembering import Remembering
    from tools.refit.scores import healthy, read_scores, scores_csv, source_scores
    from tools.refit.training import judged, timed_cases

    from shardwright.cost.learned import default_efficiency
    from shardwright.files import write_atomically
    from shardwright.validation.runs import published_runs

    cases = timed_cases(published_runs())
    print(f"predicting {len(cases):,} runs under {len(AIMS)} protocols, some minutes", file=sys.stderr)
    held_out = judged(cases, Remembering(default_efficiency()))
    before = read_scores(against) if against.is_file() else {}
    good = healthy(cases)
    tables = []
    for title, kept in ((f"{int((~good).sum()):,} stalled runs apart", good), ("stalled runs with them", good | ~good)):
        scores = {name: source_scores(name, cases, *held_out[name], kept) for name in AIMS}
        if kept is good and out is not None:
            write_atomically(out, scores_csv(scores).encode())
        tables.append(f"{title}:\n\n{accuracy_table(scores, before if kept is good else {})}")
    text = "\n\n".join(tables) + "\n"
    print(text)
    if page is not None:
        scores = {name: source_scores(name, cases, *held_out[name], good) for name in AIMS}
        parts = ["<!-- Written by `make accuracy`. -->", INTRODUCTION, text.strip(), "By source, stalled runs apart:"]
        write_atomically(page, ("\n\n".join([*parts, _by_source(scores)]) + "\n").encode())


def accuracy_table(scores: Mapping[str, Sequence[SourceScore]], before: Mapping[str, Sequence[SourceScore]]) -> str:
    """Return the scores by protocol as a Markdown table, beside the change from those `before` and the aims."""
    from tools.refit.scores import LEAST_RUNS, change, column, mean_range

    from shardwright.reports.accuracy import markdown_table

    rows = []
    for protocol, aim in AIMS.items():
        mine = scores[protocol]
        low, high = mean_range(column(mine, "median_error"))
        row = [protocol, f"{sum(score.runs for score in mine):,}", f"{len(mine)}", _mean(mine, "median_error")]
        row += [_range(low, high), _mean(mine, "median_error", LEAST_RUNS), _mean(mine, "mean_error")]
        row += [_mean(mine, "inside"), *(_mean(mine, name, kind=".2f") for name in ("width", "tau"))]
        row.append(_mean(mine, "regret"))
        moved = change(before.get(protocol, ()), mine)
        row += [f"{moved.share:+.0%}", _range(moved.low, moved.high)] if moved.sources else ["–", "–"]
        rows.append([*row, aim])
    return markdown_table(HEADER, rows, words=("protocol", "aim"))


def _by_source(scores: Mapping[str, Sequence[SourceScore]]) -> str:
    """Return the median error of every source under every protocol, those with most runs first."""
    from shardwright.reports.accuracy import markdown_table

    errors = {(score.protocol, score.source): f"{score.median_error:.1%}" for rows in scores.values() for score in rows}
    sources = sorted(scores["in domain"], key=lambda score: (-score.runs, score.source))
    rows = [
        [score.source, f"{score.runs:,}", *(errors.get((name, score.source), "–") for name in AIMS)]
        for score in sources
    ]
    return markdown_table(("source", "runs", *AIMS), rows)


def _mean(scores: Sequence[SourceScore], name: str, least: int = 1, *, kind: str = ".1%") -> str:
    from tools.refit.scores import column

    values = column(scores, name, least)
    return format(float(values.mean()), kind) if len(values) else "–"


def _range(low: float, high: float) -> str:
    return f"{low:.1%} to {high:.1%}" if low == low else "–"
