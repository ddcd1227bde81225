"""What interruptions do to a run, in words and as a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from shardwright.reports.text.layout import labelled
from shardwright.search.renting.choice import FrontPoint
from shardwright.units import SECONDS_PER_HOUR, format_dollars, format_seconds


def risk_text(choice: FrontPoint, width: int) -> str:
    """Return the interruptions to expect, how they are met, and what the run comes to with them."""
    of = format_seconds
    took = of(choice.hours * SECONDS_PER_HOUR)
    lines = ["Risk", labelled("expected", f"{choice.interruptions:,.1f} interruptions in {took}", width)]
    if choice.checkpoint_interval_seconds is not None and choice.young_interval_seconds is not None:
        every = (
            f"every {of(choice.checkpoint_interval_seconds)} of work, each {of(choice.checkpoint_seconds)} (the best "
            f"interval; Young's approximation says {of(choice.young_interval_seconds)})"
        )
        lines += [
            labelled("checkpoints", every, width),
            labelled("recovery", f"{of(choice.recovery_seconds)} after each, checkpoint read again", width),
            labelled("lost", f"{choice.lost_share:.1%} of the paid hours: lost work, checkpoints, restarts", width),
        ]
    money = f"{format_dollars(choice.dollars)}, ${choice.dollars_per_million_tokens:.3g} a million tokens"
    return "\n".join([*lines, labelled("expected", money, width)])


def risk_document(choice: FrontPoint) -> Mapping[str, object]:
    """Return the same as a JSON document: expected hours and dollars of the whole run, and what they are made of."""
    figures = [field.name for field in fields(choice) if field.name not in ("rentals", "plan")]
    return {name: getattr(choice, name) for name in figures}
