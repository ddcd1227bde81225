"""The front of a run over numbers of machines: time against dollars, or against GPUs where there is no price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Fewer
from shardwright.reports.section import Chart, Section, Table
from shardwright.reports.text import question
from shardwright.search.nearby import point
from shardwright.spec.job import Job
from shardwright.units import SECONDS_PER_HOUR, clock, format_dollars, format_seconds

HOURS_PER_DAY = 24.0


def machines_front(plan: Plan, fewer: Sequence[Fewer]) -> Iterator[Section]:
    """Yield the front of a costed plan and of its run on fewer of its machines, if there are such choices."""
    here = point(tuple(pool.nodes for pool in plan.cluster.pools), plan)
    named = [(question.machines_words(plan.cluster, choice.nodes), choice) for choice in (here, *fewer)]
    if fewer:
        yield front_section(named[0], named[1:], plan.job)


def front_section(here: tuple[str, Fewer], others: Sequence[tuple[str, Fewer]], job: Job, more: str = "") -> Section:
    """Return the section of choices of machines, each named in words: those of the plan, and fewer of them. `more`
    continues the lead."""
    choices = [here, *others]
    best = _front(choices)
    groups = {
        "this plan": [here],
        "no other is better in both": [choice for choice in best if choice is not here],
        "another is better in both": [choice for choice in others if choice not in best],
    }
    series = [
        {"name": name, "points": [[*_place(choice), words] for words, choice in group]}
        for name, group in groups.items()
        if group
    ]
    time, cost = _axes(here[1])
    return Section(
        name="front",
        title=f"Time against {'money' if cost['unit'] == 'dollars' else 'GPUs'}",
        lead=f"The same run on fewer of the machines, by the best plan found there{more}.",
        chart=Chart(
            kind="points",
            label=f"{time['name']} against {cost['name']} of {len(choices)} choices of machines; the table lists them.",
            data={
                "x": time,
                "y": cost,
                "series": series,
                "limits": limits(
                    None if here[1].hours is None else job.deadline_hours,
                    None if here[1].dollars is None else job.budget_dollars,
                ),
            },
        ),
        table=Table(
            columns=("machines", "GPUs in use", "iteration", "whole run", "cost", "on the front"),
            rows=tuple(_row(choice, choice in best) for choice in sorted(choices, key=lambda named: _place(named[1]))),
            words=("machines",),
        ),
    )


def _place(choice: Fewer) -> tuple[float, float]:
    """Return a choice on the two axes, of both of which less is better."""
    cost = choice.gpus if choice.dollars is None else choice.dollars
    return choice.iteration_seconds if choice.hours is None else choice.hours / HOURS_PER_DAY, cost


def _axes(choice: Fewer) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return (
        {"unit": "seconds", "name": "an iteration"}
        if choice.hours is None
        else {"unit": "days", "name": "training time"},
        {"unit": "GPUs", "name": "GPUs in use"}
        if choice.dollars is None
        else {"unit": "dollars", "name": "cost of the run"},
    )


def _front(choices: Sequence[tuple[str, Fewer]]) -> list[tuple[str, Fewer]]:
    front: list[tuple[str, Fewer]] = []
    for choice in sorted(choices, key=lambda named: _place(named[1])):
        if not front or _place(choice[1])[1] < _place(front[-1][1])[1]:
            front.append(choice)
    return front


def _row(named: tuple[str, Fewer], best: bool) -> tuple[str, ...]:
    words, choice = named
    seconds = choice.iteration_seconds
    return (
        words,
        f"{choice.gpus:,}",
        clock(seconds, like=seconds),
        "–" if choice.hours is None else format_seconds(choice.hours * SECONDS_PER_HOUR),
        "–" if choice.dollars is None else format_dollars(choice.dollars),
        "yes" if best else "no",
    )


def limits(deadline_hours: float | None, budget_dollars: float | None) -> list[Mapping[str, object]]:
    """Return the lines of a deadline and a budget in a chart of days against dollars."""
    days = None if deadline_hours is None else deadline_hours / HOURS_PER_DAY
    pairs = (("x", days, "deadline"), ("y", budget_dollars, "budget"))
    return [{"axis": axis, "value": value, "name": name} for axis, value, name in pairs if value is not None]
