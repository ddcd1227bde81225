"""A user's own plan on a terminal: its prediction, what is wrong with it, and how far it is from the best."""

from __future__ import annotations

from dataclasses import replace

from shardwright.errors import Problem
from shardwright.plan.ranking import Evaluation
from shardwright.report.explain import differences, shortage, verdict
from shardwright.report.layout import wrapped
from shardwright.report.terminal import WIDTH, assumptions_text, heading, plan_text, plans_table


def evaluation_text(result: Evaluation, problems: tuple[Problem, ...], notes: tuple[str, ...]) -> str:
    """Return the report of an evaluation."""
    mine = replace(result.plan, label=result.plan.label or "Your plan")
    best = result.best.plans[0] if result.best.plans else None
    parts = [heading(mine), plan_text(mine)]
    missing = list(shortage(mine))
    if missing:
        parts.append(_listed("Does not fit", [*missing, *result.remedies]))
    if problems:
        parts.append(_listed("Not legal", [str(problem) for problem in problems]))
    parts.append(f"Against the best: {verdict(mine, best)}")
    if best is not None:
        parts.append(_listed("What makes the difference", list(differences(mine, best))))
        parts.append("The best\n" + plans_table([best]))
    if notes:
        parts.append(_listed("Read from the arguments", list(notes)))
    parts.append(assumptions_text(mine))
    return "\n\n".join(part for part in parts if part)


def _listed(title: str, lines: list[str]) -> str:
    return "\n".join([title, *(wrapped(f"- {line}", "  ", WIDTH) for line in lines)])
