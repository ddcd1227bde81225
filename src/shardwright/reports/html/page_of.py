"""Pages of a plan and of a comparison of two."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.errors import bad
from shardwright.plans.document import dumps
from shardwright.plans.plan import Plan
from shardwright.reports.html.plan_sections import figures, memory_section, plan_sections, time_section
from shardwright.reports.html.timeline import timeline_section
from shardwright.reports.section import Figure, Page, Section, Table
from shardwright.reports.text import question
from shardwright.reports.text.explain import changes, reasons, saving, unit, value
from shardwright.reports.text.first_screen import next_step
from shardwright.reports.text.mixed import gpu_words
from shardwright.reports.text.strategy import SETTINGS
from shardwright.units import SECONDS_PER_HOUR, format_count, format_dollars, format_seconds


def context_lines(plan: Plan) -> tuple[str, ...]:
    """Return what was planned for."""
    images = question.images_line(plan.model, plan.job)
    lines = question.model_line(plan.model), question.cluster_line(plan.cluster), question.job_line(plan.job)
    return (*lines, images) if images else lines


def answer(plan: Plan) -> str:
    """Return a plan in one sentence: what it runs on, how fast, for how much."""
    prediction = plan.predicted
    hours, dollars = prediction.hours_total, prediction.dollars_total
    words = (
        f"{plan.model.name} trains on {gpu_words(plan)} at {format_count(prediction.tokens_per_second)} tokens a second"
    )
    if hours is None:
        return f"{words}."
    money = "" if dollars is None else f" for {format_dollars(dollars)}"
    return f"{words}: all tokens in {format_seconds(hours * SECONDS_PER_HOUR)}{money}."


def plan_page(
    plan: Plan,
    efficiency: Efficiency,
    *,
    command: str = "",
    more: tuple[Section, ...] = (),
    trainers: tuple[str, ...] | None = None,
) -> Page:
    """Return the page of a costed, legal plan; `more` are sections of what it was found among, `trainers` run it."""
    first, *others = plan_sections(plan, efficiency)
    return Page(
        title=f"{plan.model.name} on {gpu_words(plan)}",
        answer=answer(plan),
        context=context_lines(plan),
        figures=tuple(figures(plan)),
        sections=(first, *others[:4], *more, *others[4:], repeat_section(command, plan, trainers)),
        files={"plan.json": dumps(plan)},
    )


def comparison_page(names: tuple[str, str], mine: Plan, other: Plan, efficiency: Efficiency) -> Page:
    """Return the page of two costed, legal plans side by side. Raises SpecError where their steps do different work."""
    _require_comparable(names, mine, other)
    ahead, behind = (mine, other) if value(mine) <= value(other) else (other, mine)
    winner = names[0] if ahead is mine else names[1]
    loser = names[1] if ahead is mine else names[0]
    rows = tuple((SETTINGS[name], *pair) for name, pair in changes(mine, other).items())
    settings = Section(
        name="settings",
        title="What is set otherwise",
        lead="Settings that are alike are left out." if rows else "The two plans have the same settings.",
        table=Table(columns=("setting", *names), rows=rows, words=("setting", *names), open=True) if rows else None,
    )
    title = f"Why {loser} takes longer" if unit(ahead) == "time" else "Where the times differ"
    why = Section(name="why", title=title, points=tuple(reasons(behind, ahead)))
    return Page(
        title=f"{names[0]} and {names[1]}",
        answer=f"{winner}: {saving(behind, ahead)} than {loser}.",
        context=tuple(dict.fromkeys((*context_lines(mine), *context_lines(other)))),
        figures=tuple(
            Figure(label=f"{figure.label}, {name}", value=figure.value, note=figure.note)
            for name, plan in zip(names, (mine, other), strict=True)
            for figure in list(figures(plan))[:3]
        ),
        sections=(
            settings,
            why,
            time_section(list(zip(names, (mine, other), strict=True))),
            *_both(names, memory_section(mine), memory_section(other)),
            *_both(names, timeline_section(mine, efficiency), timeline_section(other, efficiency)),
            _repeat_section([f"shardwright evaluate {name}" for name in ("first.json", "second.json")]),
        ),
        files={"first.json": dumps(mine), "second.json": dumps(other)},
    )


def _require_comparable(names: tuple[str, str], mine: Plan, other: Plan) -> None:
    for what, left, right in (
        ("models", mine.model.name, other.model.name),
        ("tokens a step", mine.job.tokens_per_iteration, other.job.tokens_per_iteration),
        ("objectives", mine.job.objective, other.job.objective),
    ):
        if left != right:
            message = f"are plans of different {what}, {left} and {right}"
            raise bad(" and ".join(names), message, "compare plans of one model, batch and objective")


def _both(names: tuple[str, str], *sections: Section) -> tuple[Section, ...]:
    return tuple(
        replace(section, name=f"{section.name}-{place}", title=f"{section.title}, {name}")
        for place, (name, section) in enumerate(zip(names, sections, strict=True), start=1)
    )


def repeat_section(command: str, plan: Plan, trainers: tuple[str, ...] | None = None) -> Section:
    """Return how to get a plan again, which is saved as plan.json, and what to do next."""
    _, step = next_step(Path("plan.json"), trainers)
    return _repeat_section([*([command] if command else []), "shardwright evaluate plan.json", step])


def _repeat_section(lines: list[str]) -> Section:
    return Section(
        name="repeat",
        title="Repeat it, run it",
        lead="The plan file holds model, machines and job: nothing else is needed to repeat the prediction.",
        code="\n".join(lines),
    )
