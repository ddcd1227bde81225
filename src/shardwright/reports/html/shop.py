"""The page of a search over offers, from its JSON document: the front of time, dollars and interruptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from shardwright.errors import bad
from shardwright.plans.document import dumps, from_document
from shardwright.reports.html.front import HOURS_PER_DAY, limits
from shardwright.reports.html.page_of import context_lines, repeat_section
from shardwright.reports.section import Chart, Figure, Page, Section, Table
from shardwright.rows import holding
from shardwright.units import SECONDS_PER_HOUR, format_dollars, format_seconds

PICKS = {
    "knee": "where the front bends",
    "cheapest_within_deadline": "cheapest within the deadline",
    "fastest_within_budget": "fastest within the budget",
}


def shop_page(document: Mapping[str, Any], *, command: str = "") -> Page:
    """Return the page of what `shop --json` printed. Raises SpecError where its front is empty."""
    front: list[Mapping[str, Any]] = document["front"]
    if not front:
        reason = document["infeasible"]["reason"]["words"] if "infeasible" in document else "no choice was found"
        raise bad("front", f"is empty: {reason}", "shop again with what that needs")
    chosen = document["chosen"]
    best = front[chosen or 0]
    plan = from_document(best["plan"], f"front[{chosen or 0}].plan")
    hours, dollars = format_seconds(best["hours"] * SECONDS_PER_HOUR), format_dollars(best["dollars"])
    page = Page(
        title=f"What to rent for {plan.model.name}",
        answer=f"Rent {_rent(best)}: {plan.model.name} trains in {hours} for {dollars}.",
        context=(context_lines(plan)[0], ", ".join([context_lines(plan)[2], *_limits_words(document)])),
        figures=tuple(_figures(document)),
        sections=(_front_section(document, chosen), _assumed(document), repeat_section(command, plan)),
        files={"plan.json": dumps(plan)},
    )
    return page if chosen is not None else _refused(page, document["infeasible"])


def _refused(page: Page, infeasible: Mapping[str, Any]) -> Page:
    """Return the page of a front of which no choice does what was asked."""
    help_ = Section(
        name="help", title="What would do", points=tuple(remedy["words"] for remedy in infeasible["remedies"])
    )
    answer = f"No offer does: {infeasible['reason']['words']}."
    return replace(page, answer=answer, sections=(help_, *page.sections[:2]), files={})


def _limits_words(document: Mapping[str, Any]) -> Iterable[str]:
    hours, dollars = document["deadline_hours"], document["budget_dollars"]
    return holding(
        (hours is not None, f"within {format_seconds((hours or 0.0) * SECONDS_PER_HOUR)}"),
        (dollars is not None, f"for at most {format_dollars(dollars or 0.0)}"),
    )


def _figures(document: Mapping[str, Any]) -> list[Figure]:
    figures = []
    for name, words in PICKS.items():
        place = document["picks"].get(name)
        if place is not None:
            choice = document["front"][place]
            hours = format_seconds(choice["hours"] * SECONDS_PER_HOUR)
            sure = f", {_sure(choice)} sure to keep the limits" if choice.get("chances") else ""
            figures.append(
                Figure(label=words, value=format_dollars(choice["dollars"]), note=f"{hours}, {_rent(choice)}{sure}")
            )
    return figures


def _sure(choice: Mapping[str, Any]) -> str:
    """Return with what probability a choice keeps all limits."""
    chances = choice.get("chances", {}).values()
    return f"{min(chances):.0%}" if chances else "–"


def _rent(choice: Mapping[str, Any]) -> str:
    return " + ".join(f"{rental['gpus']} {rental['gpu']} ({rental['market']})" for rental in choice["rent"])


def _front_section(document: Mapping[str, Any], chosen: int | None) -> Section:
    front = document["front"]
    names = list(dict.fromkeys(_kind(choice) for choice in front))
    series = [
        {
            "name": name,
            "points": [[c["hours"] / HOURS_PER_DAY, c["dollars"], _rent(c)] for c in front if _kind(c) == name],
        }
        for name in names
    ]
    rows = tuple(
        (
            ("→ " if place == chosen else "") + _rent(choice),
            " + ".join(dict.fromkeys(rental["provider"] or "own" for rental in choice["rent"])),
            format_seconds(choice["hours"] * SECONDS_PER_HOUR),
            format_dollars(choice["dollars"]),
            _sure(choice),
            f"{choice['interruptions']:,.1f}",
            f"{choice['lost_share']:.1%}",
        )
        for place, choice in enumerate(front)
    )
    columns = ("rent", "provider", "time", "cost", "sure to keep the limits", "interruptions", "hours lost")
    return Section(
        name="front",
        title="The front",
        lead="No other choice is faster and cheaper and interrupted less often. Hours and dollars count interruptions.",
        chart=Chart(
            kind="points",
            label=f"Training time against cost of {len(front)} choices; the table lists them.",
            data={
                "x": {"unit": "days", "name": "training time"},
                "y": {"unit": "dollars", "name": "cost of the run"},
                "series": series,
                "limits": limits(document["deadline_hours"], document["budget_dollars"]),
            },
        ),
        table=Table(columns=columns, rows=rows, words=columns[:2]),
    )


def _kind(choice: Mapping[str, Any]) -> str:
    return " + ".join(f"{rental['gpu']}, {rental['market']}" for rental in choice["rent"])


def _assumed(document: Mapping[str, Any]) -> Section:
    lead = "Anything left out was taken from the catalogue:" if document["assumed"] else "Nothing was assumed."
    return Section(name="assumed", title="Assumptions", lead=lead, points=tuple(document["assumed"]))
