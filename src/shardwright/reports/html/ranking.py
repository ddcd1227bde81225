"""The page of a search's result, from its JSON document: the best plan among what else was found, tried and dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.errors import Problem, bad, reject
from shardwright.plans.codec import decode
from shardwright.plans.document import from_document
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Fewer
from shardwright.reports.documents.findings import kind_of
from shardwright.reports.html.front import machines_front
from shardwright.reports.html.page_of import plan_page
from shardwright.reports.section import Chart, Page, Section, Table
from shardwright.reports.text import mixed, strategy
from shardwright.reports.text.explain import contrast, unit, value
from shardwright.reports.words import MEANING
from shardwright.units import clock, format_count, format_seconds

CAUTIONS = ("passed_over", "usual", "with_options")  # what stands beside the first plan, with its words
MOST_BARS = 14  # of alternatives
MEANINGS = {kind_of(cause): words for cause, words in MEANING.items()}


def ranking_page(document: Mapping[str, Any], efficiency: Efficiency, *, command: str = "") -> Page:
    """Return the page of what `plan --json` printed, which has at least one plan."""
    plans = [from_document(data, f"plans[{place}]") for place, data in enumerate(document["plans"])]
    more = (
        *machines_front(plans[0], _fewer(plans[0], document.get("fewer", ()))),
        *_alternatives(plans, [*document["baselines"], *document.get("kinds", [])]),
        *_search(plans[0], document["search"], *(document.get(name) for name in CAUTIONS)),
    )
    trainers = tuple(document["trainers"][0]) if document.get("trainers") else None
    return plan_page(plans[0], efficiency, command=command, more=more, trainers=trainers)


def _fewer(plan: Plan, rows: Sequence[object]) -> tuple[Fewer, ...]:
    """Return the rows `fewer` of a document. Raises SpecError for what is none for the plan's cluster."""
    problems: list[Problem] = []
    choices = tuple(decode(row, Fewer, f"fewer[{place}]", problems) for place, row in enumerate(rows))
    reject(problems)
    for place, choice in enumerate(choices):
        if len(choice.nodes) != len(plan.cluster.pools):
            raise bad(f"fewer[{place}].nodes", f"has {len(choice.nodes)} numbers", "one for each group of machines")
    return choices


def _alternatives(plans: list[Plan], baselines: list[Mapping[str, Any]]) -> Iterator[Section]:
    like, least = plans[0].iteration_seconds, value(plans[0])
    what = unit(plans[0])
    worth_key = "dollars" if what == "money" else "iteration_seconds"
    entries: list[tuple[str, float, float | None]] = [
        (f"plan {place}: {_short(plan)}", plan.iteration_seconds, value(plan)) for place, plan in enumerate(plans, 1)
    ]
    entries += [
        (entry["rule"], entry["iteration_seconds"], entry.get(worth_key))
        for entry in baselines
        if entry["iteration_seconds"] is not None
    ]
    rows = [
        (name, clock(seconds, like=like), "–" if worth is None else f"{worth / least:.3f}×", "")
        for name, seconds, worth in entries
    ]
    rows += [
        (entry["rule"], "–", "–", entry["reason"]["words"] if entry["reason"] else "")
        for entry in baselines
        if entry["iteration_seconds"] is None
    ]
    why = tuple(
        f"plan {place}: {value(plan) / least - 1.0:+.2%} {what}; {contrast(plan, plans[0])}"
        for place, plan in enumerate(plans[1:], start=2)
    )
    yield Section(
        name="alternatives",
        title="Alternatives and rules of thumb",
        lead="Seconds of an iteration of the plans found and of what an expert would try.",
        points=why,
        chart=Chart(
            kind="bars",
            label="Seconds of an iteration of each alternative; the table has the same figures.",
            data={
                "unit": "seconds",
                "rows": [name for name, _, _ in entries[:MOST_BARS]],
                "kinds": ["iteration"],
                "values": [[seconds] for _, seconds, _ in entries[:MOST_BARS]],
            },
        ),
        table=Table(
            columns=("alternative", "iteration", f"{what} against the best", "why not"),
            rows=tuple(rows),
            words=("alternative", "why not"),
        ),
    )


def _short(plan: Plan) -> str:
    return (
        strategy.degrees_words(plan)
        if plan.uniform or plan.layered
        else f"{mixed.gpu_words(plan)}, dp {plan.data_parallel}"
    )


def _search(best: Plan, report: Mapping[str, Any], *cautions: Mapping[str, Any] | None) -> Iterator[Section]:
    rows = tuple(
        (entry["words"], f"{entry['count']:,}", MEANINGS.get(entry["kind"], ""))
        for entry in sorted(report["rejected"], key=lambda entry: -entry["count"])
    )
    lead = (
        f"{format_count(report['candidates'])} candidates in {format_seconds(report['seconds'])}; "
        f"{report['costed']:,} were costed one by one, the others fell as below."
    )
    gap, left_out = report["gap"], "; ".join(kind["words"] for kind in report["not_covered"])
    least = "" if gap is None else mixed.least_words(best, report.get("lower_bound_dollars"))
    points = (
        f"Certificate: no plan of the space {least}; this one is within {gap:.2%} of that." if least else "",
        *(f"Caution: {caution['words']}." for caution in cautions if caution and caution["words"]),
        f"Not covered: {left_out}." if left_out else "",
    )
    yield Section(
        name="search",
        title="What the search dropped, and the proof",
        lead=lead,
        points=tuple(point for point in points if point),
        table=Table(columns=("reason", "candidates", "meaning"), rows=rows, words=("reason", "meaning"), open=True),
    )
