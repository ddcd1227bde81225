"""The way from a user's plan to better ones, a change at a time, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.plans.plan import Plan
from shardwright.reports.text import outcome
from shardwright.reports.text.explain import changes
from shardwright.reports.text.layout import labelled, wrapped
from shardwright.reports.text.plans import predicted
from shardwright.reports.text.strategy import SETTINGS
from shardwright.units import clock, format_bytes

INDENT = " " * 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A step with the arguments that make it: to write, and to leave out (none where no arguments are known)."""

    plan: Plan
    free: bool
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def flags(self) -> str:
        """The arguments in one line, ready to paste."""
        without = f"leave out {' '.join(self.removed)}" if self.removed else ""
        return "; ".join(part for part in (" ".join(self.added), without) if part)


def ladder_text(mine: Plan, rungs: Sequence[Rung], width: int, measured: float | None = None) -> str:
    """Return the steps from `mine` with the arguments that make each. `measured` seconds of the user's own
    run scale all times."""
    if not rungs:
        return ""
    scale = measured / predicted(mine).iteration_seconds if measured else 1.0
    like = scale * predicted(mine).iteration_seconds
    lines, before = ["One change at a time", _step("yours", mine, scale, like, width)], mine
    for number, rung in enumerate(rungs, 1):
        changed = "; ".join(
            f"{SETTINGS[name]} {old} → {new}" for name, (old, new) in changes(before, rung.plan).items()
        )
        words = f"{number}. {changed}{' (free)' if rung.free else ''}"
        lines.append(_step(words, rung.plan, scale, like, width))
        lines += [wrapped(rung.flags, INDENT, width)] if rung.flags else []
        before = rung.plan
    if measured:
        lines += ["", _measured_words(mine, measured, width)]
    return "\n".join(lines)


def _step(words: str, plan: Plan, scale: float, like: float, width: int) -> str:
    prediction = predicted(plan)
    memory = format_bytes(outcome.fullest(prediction).total_bytes)
    seconds = clock(scale * prediction.iteration_seconds, like=like)
    return labelled(f"  {seconds}  {memory}", words, width, column=len(INDENT))


def _measured_words(mine: Plan, measured: float, width: int) -> str:
    prediction = predicted(mine)
    seconds, (low, high) = prediction.iteration_seconds, prediction.interval
    inside = "inside" if low <= measured <= high else "outside"
    took, other = (clock(value, like=measured) for value in (measured, seconds))
    words = (
        f"You measured {took}; {other} was predicted ({measured / seconds - 1.0:+.1%}), {inside} its interval. "
        "The times above are scaled by that."
    )
    return wrapped(words, "", width)
