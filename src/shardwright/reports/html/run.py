"""The page of a finished training run: what was measured beside what was predicted."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.errors import bad
from shardwright.plans.document import load_plan
from shardwright.plans.plan import Plan
from shardwright.reports.html.page_of import context_lines, plan_page
from shardwright.reports.palette import BUBBLE, DONE, numbered
from shardwright.reports.section import Chart, Figure, Page, Section, Table
from shardwright.reports.text.mixed import gpu_words
from shardwright.units import format_bytes, format_count, format_seconds

STATUS, METRICS, PLAN = "status.json", "metrics.csv", "plan.json"
MOST_ROWS = 200  # of a table of steps


def run_page(folder: Path, efficiency: Efficiency, plan: Plan | None = None) -> Page:
    """Return the page of the run in a folder that `train --out` left. Raises SpecError where it is none, or no step
    was measured."""
    status = _status(folder)
    plan = load_plan(folder / PLAN) if plan is None else plan
    measured, predicted = status["iteration_seconds"], status["predicted_iteration_seconds"]
    page = plan_page(plan, efficiency, more=(_ranks(status), *_steps(folder)))
    words = f"{plan.model.name} on {gpu_words(plan)} took {format_seconds(measured)} an iteration"
    if predicted:
        words += f", {measured / predicted - 1.0:+.0%} against the {format_seconds(predicted)} predicted"
    figures = [
        Figure(label="measured", value=format_seconds(measured), note=f"median of the steps; run {status['state']}"),
        Figure(label="tokens a second", value=format_count(status["tokens_per_second"]), note="measured"),
    ]
    if predicted:
        figures.insert(
            1, Figure(label="predicted", value=format_seconds(predicted), note=f"{predicted / measured - 1.0:+.0%}")
        )
    return Page(
        title=f"Run of {plan.model.name}",
        answer=f"{words}.",
        context=context_lines(plan),
        figures=tuple(figures),
        sections=page.sections,
        files=page.files,
    )


def _status(folder: Path) -> Mapping[str, Any]:
    try:
        status: dict[str, Any] = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise bad(str(folder / STATUS), "cannot be read", "name the --out folder of a run that has ended") from None
    if "ranks" not in status:
        raise bad(str(folder / STATUS), "has no measured steps", "name a run that trained at least one step")
    return status


def _ranks(status: Mapping[str, Any]) -> Section:
    ranks: list[Mapping[str, Any]] = status["ranks"]
    rows = tuple(
        (
            f"rank {rank['rank']}, stage {rank['stage']}",
            format_seconds(rank["busy_seconds"]),
            _or_dash(rank["predicted_busy_seconds"], format_seconds),
            format_seconds(rank["waiting_seconds"]),
            f"{rank['bubble']:.0%}",
            _or_dash(rank["predicted_bubble"], "{:.0%}".format),
            format_bytes(rank["peak_memory_bytes"]),
            _or_dash(rank["predicted_memory_bytes"], format_bytes),
        )
        for rank in ranks
    )
    columns = (
        "rank",
        "computes",
        "predicted",
        "waits",
        "bubble",
        "predicted bubble",
        "peak memory",
        "predicted memory",
    )
    kinds = ["measured computing", "measured waiting"]
    return Section(
        name="ranks",
        title="Measured beside predicted",
        lead="Medians over the steps, rank by rank.",
        chart=Chart(
            kind="bars",
            label="Seconds of computing and waiting of each rank; the table has these and the predicted figures.",
            data={
                "unit": "seconds",
                "rows": [row[0] for row in rows],
                "kinds": kinds,
                "colours": [numbered(colour[1:]) for colour in (DONE["backward"], BUBBLE)],
                "values": [[rank["busy_seconds"], rank["waiting_seconds"]] for rank in ranks],
            },
        ),
        table=Table(columns=columns, rows=rows, words=("rank",), open=True),
    )


def _or_dash(value: Any, words: Any) -> str:
    return "–" if value is None else str(words(value))


def _steps(folder: Path) -> tuple[Section, ...]:
    path = folder / METRICS
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.reader(stream)
        columns = tuple(next(reader, ()))
        rows = [tuple(row) for row in reader if len(row) == len(columns)]
    if not columns or not rows:
        return ()
    every = -(-len(rows) // MOST_ROWS)
    lead = "From the metrics of the run." if every == 1 else f"Every {every}th step from the metrics of the run."
    return (
        Section(
            name="steps",
            title="Steps",
            lead=lead,
            table=Table(columns=columns, rows=tuple(rows[::every])),
        ),
    )
