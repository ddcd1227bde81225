"""The page of a search's result, from its JSON document: the best plan among what else was found, tried and dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.errors import Problem, SpecError, bad
from shardwright.plans.codec import decode
from shardwright.plans.document import from_document
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Fewer
from shardwright.reports.html.front import machines_front
from shardwright.reports.html.page_of import plan_page
from shardwright.reports.html.section import Chart, Page, PageSection, PageTable
from shardwright.reports.text import describe, mixed
from shardwright.reports.text.explain import contrast, value
from shardwright.reports.text.plans import predicted
from shardwright.reports.words import MEANING
from shardwright.units import clock, format_count, format_seconds

MOST_BARS = 14  # of alternatives


def ranking_page(document: Mapping[str, Any], efficiency: Efficiency, *, command: str = "") -> Page:
    """Return the page of what `plan --json` printed, which has at least one plan."""
    plans = [from_document(data, f"plans[{place}]") for place, data in enumerate(document["plans"])]
    more = (
        *machines_front(plans[0], _fewer(plans[0], document.get("fewer", ()))),
        *_alternatives(plans, [*document["baselines"], *document.get("kinds", [])]),
        *_search(plans[0], document["search"], document.get("passed_over")),
    )
    return plan_page(plans[0], efficiency, command=command, more=more)


def _fewer(plan: Plan, rows: Sequence[object]) -> tuple[Fewer, ...]:
    """Return the rows `fewer` of a document. Raises SpecError for what is none for the plan's cluster."""
    problems: list[Problem] = []
    found = tuple(decode(row, Fewer, f"fewer[{place}]", problems) for place, row in enumerate(rows))
    if problems:
        raise SpecError(*problems)
    for place, choice in enumerate(found):
        if len(choice.nodes) != len(plan.cluster.pools):
            raise bad(f"fewer[{place}].nodes", f"has {len(choice.nodes)} numbers", "one for each group of machines")
    return found


def _alternatives(plans: list[Plan], baselines: list[Mapping[str, Any]]) -> Iterator[PageSection]:
    best = predicted(plans[0]).iteration_seconds
    found = [
        (f"plan {place}: {_short(plan)}", predicted(plan).iteration_seconds) for place, plan in enumerate(plans, 1)
    ]
    tried = [(entry["rule"], entry["iteration_seconds"], entry["reason"]) for entry in baselines]
    found += [(rule, seconds) for rule, seconds, _ in tried if seconds is not None]
    rows = [(name, clock(seconds, like=best), f"{seconds / best:.3f}×", "") for name, seconds in found]
    rows += [(rule, "–", "–", reason) for rule, seconds, reason in tried if seconds is None]
    why = tuple(
        f"plan {place}: {value(plan) / value(plans[0]) - 1.0:+.2%}; {contrast(plan, plans[0])}"
        for place, plan in enumerate(plans[1:], start=2)
    )
    yield PageSection(
        name="alternatives",
        title="Alternatives and rules of thumb",
        lead="Seconds of an iteration of the plans found and of what an expert would try.",
        points=why,
        chart=Chart(
            kind="bars",
            label="Seconds of an iteration of each alternative; the table has the same figures.",
            data={
                "unit": "seconds",
                "rows": [name for name, _ in found[:MOST_BARS]],
                "kinds": ["iteration"],
                "values": [[seconds] for _, seconds in found[:MOST_BARS]],
            },
        ),
        table=PageTable(
            columns=("alternative", "iteration", "against the best", "why not"),
            rows=tuple(rows),
            words=("alternative", "why not"),
        ),
    )


def _short(plan: Plan) -> str:
    return (
        describe.degrees_words(plan)
        if plan.uniform or plan.layered
        else f"{mixed.gpu_words(plan)}, dp {plan.data_parallel}"
    )


def _search(best: Plan, report: Mapping[str, Any], passed_over: Mapping[str, Any] | None) -> Iterator[PageSection]:
    rows = tuple(
        (reason, f"{count:,}", MEANING.get(reason, ""))
        for reason, count in sorted(report["rejected"].items(), key=lambda item: -item[1])
    )
    lead = (
        f"{format_count(report['candidates'])} candidates in {format_seconds(report['seconds'])}; "
        f"{report['costed']:,} were costed one by one, the others fell as below."
    )
    bound = predicted(best).lower_bound_seconds
    points = []
    if report["gap"] is not None:
        of = clock(bound, like=bound)
        points.append(
            f"Certificate: no plan of the space is faster than {of}; this one is within {report['gap']:.2%} of it."
        )
    if passed_over and passed_over["words"]:
        points.append(f"Caution: {passed_over['words']}.")
    if report["not_covered"]:
        points.append("Not covered: " + "; ".join(report["not_covered"]) + ".")
    yield PageSection(
        name="search",
        title="What the search dropped, and the proof",
        lead=lead,
        points=tuple(points),
        table=PageTable(columns=("reason", "candidates", "meaning"), rows=rows, words=("reason", "meaning"), open=True),
    )
