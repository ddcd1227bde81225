"""The page of a diagnosis: from expected to measured, the causes, and the step that was traced beside the predicted
one. It shows what `diagnose --json` printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.plans.document import dumps, from_document
from shardwright.plans.plan import Plan
from shardwright.reports.html.page_of import context_lines
from shardwright.reports.html.timeline import timeline_section
from shardwright.reports.section import Chart, Figure, Page, Section, Table
from shardwright.units import clock, format_bytes, format_seconds

Document = Mapping[str, Any]
SMALLEST = 0.002  # of a step; a smaller difference is no row of the waterfall
KINDS = (
    {"name": "a step", "colour": 0, "opacity": 1.0, "height": 0.72},
    {"name": "more than expected", "colour": 3, "opacity": 1.0, "height": 0.72},
    {"name": "less than expected", "colour": 2, "opacity": 0.9, "height": 0.72},
)
TRACED = (
    {"name": "computing", "colour": 0, "opacity": 1.0, "height": 0.72},
    {"name": "communication", "colour": 3, "opacity": 0.8, "height": 0.44},
    {"name": "waiting for data", "colour": 5, "opacity": 1.0, "height": 0.72},
)
LANES = {"compute": 0, "communication": 1, "data": 2}


def diagnosis_page(document: Document, efficiency: Efficiency) -> Page:
    """Return the page of what `diagnose --json` printed."""
    plan = from_document(document["plan"], "plan")
    step, expected = document["step_seconds"], document["expected_seconds"]
    low, high = map(format_seconds, document["interval_seconds"])
    measured = "" if step is None else f"{step / expected - 1.0:+.0%}"
    first: Document = document["causes"][0] if document["causes"] else {"saving_seconds": None, "title": ""}
    figures: tuple[tuple[str, float | None, str], ...] = (
        ("measured", step, measured),
        ("expected", expected, f"{low} to {high}"),
        ("mending the first cause", first["saving_seconds"], first["title"]),
    )
    return Page(
        title=f"Why {plan.model.name} takes what it takes",
        answer=document["words"],
        context=context_lines(plan),
        figures=tuple(
            Figure(label=label, value=format_seconds(seconds), note=note)
            for label, seconds, note in figures
            if seconds is not None
        ),
        sections=tuple(_sections(document, plan, efficiency)),
        files={"plan.json": dumps(plan)},
    )


def _sections(document: Document, plan: Plan, efficiency: Efficiency) -> Iterator[Section]:
    yield _waterfall(document)
    yield _causes(document)
    if document["memory"] is not None:
        yield _memory(document["memory"])
    if document["records"]:
        points = tuple(f"{row['what']}: {row['command']}" for row in document["records"])
        yield Section(name="records", title="What would tell more", points=points)
    if any(rank["timeline"] for rank in document["ranks"]):
        yield _trace(document["ranks"])
    yield timeline_section(plan, efficiency)


def _change(name: str, before: float, after: float) -> tuple[str, int, float, float]:
    """Return a bar of what a term adds or takes away."""
    return name, 1 if after > before else 2, min(before, after), max(before, after)


def _waterfall(document: Document) -> Section:
    """Return the section that leads from the expected step to the measured one, a term a row."""
    expected, step = document["expected_seconds"], document["step_seconds"]
    like = step or expected
    bars: list[tuple[str, int, float, float]] = [("expected", 0, 0.0, expected)]
    at = expected
    for term in document["terms"]:
        measured = term["measured_seconds"]
        more = 0.0 if measured is None else measured - term["expected_seconds"]
        if term["name"] != "stalls" and abs(more) >= SMALLEST * like:
            bars.append(_change(term["name"], at, at + more))
            at += more
    if step is not None:
        bars += [_change("not told apart", at, step)] if abs(step - at) >= SMALLEST * like else []
        bars.append(("measured", 0, 0.0, step))
    chart = Chart(
        kind="timeline",
        label="From the expected step to the measured one, term by term; the table has the same figures.",
        data={
            "rows": [name for name, *_ in bars],
            "kinds": KINDS,
            "seconds": max(end for *_, end in bars),
            "pass": [],
            "bars": [[row, kind, begin, end, -1, 0] for row, (_, kind, begin, end) in enumerate(bars)],
        },
    )
    cells = tuple(
        (
            term["name"],
            clock(term["expected_seconds"], like=like),
            _clock(term["measured_seconds"], like),
            _clock(term["hidden_seconds"], like),
        )
        for term in document["terms"]
    )
    columns = ("term", "expected", "measured", "hidden beside")
    table = Table(columns=columns, rows=cells, words=("term",), open=True)
    lead = "What a step should take, what each term takes more or less than that, and what it takes."
    return Section(name="waterfall", title="Expected and measured", lead=lead, chart=chart, table=table)


def _clock(seconds: float | None, like: float) -> str:
    return "–" if seconds is None else clock(seconds, like=like)


def _causes(document: Document) -> Section:
    rows = tuple(
        (
            cause["title"],
            cause["basis"],
            format_seconds(cause["saving_seconds"]) if cause["saving_seconds"] else "–",
            "; ".join(cause["evidence"]),
            "; ".join((cause["remedy"], *cause["changes"])),
            cause["flags"],
        )
        for cause in document["causes"]
    )
    columns = ("cause", "how it is known", "saves", "evidence", "what mends it", "what to write")
    if not rows:
        return Section(name="causes", title="Causes", lead="Nothing that is known makes this run slow.")
    words = tuple(name for name in columns if name != "saves")
    lead = "What saves most first; what is only possible last."
    return Section(
        name="causes", title="Causes", lead=lead, table=Table(columns=columns, rows=rows, words=words, open=True)
    )


def _memory(memory: Document) -> Section:
    pairs = (("needed", "needed_bytes"), ("tensors", "allocated_bytes"), ("reserved", "reserved_bytes"))
    rows = (
        *((name.removesuffix("_bytes"), format_bytes(size), "") for name, size in memory["account_bytes"].items()),
        ("in all", format_bytes(memory["account_total_bytes"]), ""),
        *((name, "", format_bytes(memory[key])) for name, key in pairs if memory[key] is not None),
        ("the GPU has", "", format_bytes(memory["capacity_bytes"])),
    )
    table = Table(columns=("kind", "account", "measured"), rows=rows, words=("kind",), open=True)
    points = (*memory["notes"], *memory["changes"])
    return Section(name="memory-told", title=f"Memory of a GPU of stage {memory['stage']}", points=points, table=table)


def _trace(ranks: Sequence[Document]) -> Section:
    """Return the traced step of each rank; the predicted one stands below it."""
    bars = [
        [row, LANES[kind], begin, end, -1, 0] for row, rank in enumerate(ranks) for kind, begin, end in rank["timeline"]
    ]
    seconds = max(rank["step_seconds"] for rank in ranks)
    chart = Chart(
        kind="timeline",
        label="What each rank did in a step that was traced; the table has its sums.",
        data={
            "rows": [f"rank {rank['rank']}" for rank in ranks],
            "kinds": TRACED, "seconds": seconds, "pass": [], "bars": bars,
        },
    )  # fmt: skip
    rows = tuple(
        (
            f"{rank['rank']}",
            format_seconds(rank["compute_seconds"]),
            format_seconds(sum(call["exposed_seconds"] for call in rank["collectives"])),
            format_seconds(sum(call["hidden_seconds"] for call in rank["collectives"])),
            format_seconds(rank["data_seconds"]),
            format_seconds(rank["idle_seconds"]),
        )
        for rank in ranks
    )
    columns = ("rank", "computing", "communication exposed", "hidden", "data", "idle")
    lead = "One step as it was traced, a rank a row. The predicted step stands below."
    return Section(
        name="traced", title="The step that was traced", lead=lead, chart=chart, table=Table(columns=columns, rows=rows)
    )
