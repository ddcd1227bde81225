"""Durations and amounts of money as people write them."""

from __future__ import annotations

import re

from shardwright.errors import SpecError, bad
from shardwright.spec.read.job import parse_count

DURATION = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+)\s*(?P<unit>[a-z]*)", re.I)
HOURS = {"": 1.0, "h": 1.0, "hours": 1.0, "hour": 1.0, "d": 24.0, "days": 24.0, "day": 24.0, "w": 168.0, "weeks": 168.0}


def hours(text: str | None, option: str) -> float | None:
    """Return the hours of `30d`, `720h`, `2w` or a plain number of hours. Raises SpecError for anything else."""
    if text is None:
        return None
    match = DURATION.fullmatch(text.strip())
    if match is None or match["unit"].casefold() not in HOURS or float(match["number"]) == 0.0:
        raise bad(f"{option} {text}", "is no duration", "write 30d, 720h or a number of hours")
    return float(match["number"]) * HOURS[match["unit"].casefold()]


def dollars(text: str | None, option: str) -> float | None:
    """Return the dollars of `2M`, `500k`, `$50,000` or a plain number. Raises SpecError for anything else."""
    if text is None:
        return None
    try:
        return parse_count(text.strip().removeprefix("$"), option)
    except SpecError:
        raise bad(f"{option} {text}", "is no amount of money", "write 2M, 500k or a number of US dollars") from None
