"""How uneven FSDP stands against other kinds of plans over several GPU types."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Baseline
from shardwright.reports.text import describe
from shardwright.reports.text.explain import saving, value
from shardwright.reports.text.layout import labelled
from shardwright.reports.text.plans import predicted
from shardwright.units import clock


def kinds_words(kinds: Sequence[Baseline], best: Plan) -> str:
    """Return by how much the best plan beats the best of other kinds: 12% less time than …, 38% less than …; nothing
    where uneven FSDP is not the best."""
    if not best.layered:
        return ""
    others = [entry for entry in kinds if entry.plan is not None and value(entry.plan) > value(best)]
    return ", ".join(f"{saving(entry.plan, best)} than {entry.rule}" for entry in others if entry.plan is not None)


def kinds_text(kinds: Sequence[Baseline], best: Plan, width: int) -> str:
    """Return the best plan of each kind over several GPU types, against the best of all."""
    if not kinds:
        return ""
    lines = ["Kinds of plans over several GPU types"]
    for entry in kinds:
        if entry.plan is None:
            lines.append(labelled("  –", f"{entry.rule}: none fits", width, column=20))
            continue
        seconds = predicted(entry.plan).iteration_seconds
        time = clock(seconds, like=predicted(best).iteration_seconds)
        figures = f"{time:>11} {value(entry.plan) / value(best) - 1.0:+7.1%}"
        lines.append(labelled(figures, f"{entry.rule}: {describe.degrees_words(entry.plan)}", width, column=20))
    return "\n".join(lines)
