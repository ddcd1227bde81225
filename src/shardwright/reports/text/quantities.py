"""Times and counts with their units."""

from __future__ import annotations


def clock(seconds: float, *, like: float, sign: str = "") -> str:
    """Return a time to the thousandth of the unit that suits `like`, so that times of one table share their unit."""
    return f"{seconds:{sign}.3f} s" if like >= 1.0 else f"{seconds * 1e3:{sign}.3f} ms"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 layer, 2 layers."""
    ending = "" if number == 1 else "es" if noun.endswith("h") else "s"
    return f"{number} {noun}{ending}"
