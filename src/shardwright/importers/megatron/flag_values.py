"""Values of arguments, from text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from shardwright.importers.megatron.flag_table import Known

LARGEST_COUNT = 10**18
PATTERN_TERM = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?")
MOST_PATTERN = 100_000


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value <= LARGEST_COUNT:
        raise ValueError
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _window(text: str) -> tuple[int, int]:
    left, right = (int(part) for part in text.strip("()").split(","))
    return left, right


def _pattern(text: str) -> int | tuple[int, ...]:
    """A count N, or a list such as `([0]*3+[1]*58)*1` as numbers. Only sums and products of lists of 0 and 1."""
    flat = "".join(text.split())
    if flat.isdigit():
        return int(flat)
    outer = re.fullmatch(r"\((.*)\)(?:\*(\d{1,5}))?", flat)
    body, times = (outer[1], int(outer[2] or 1)) if outer else (flat, 1)
    numbers: list[int] = []
    for term in body.split("+"):
        match = PATTERN_TERM.fullmatch(term)
        if match is None or len(numbers) > MOST_PATTERN:
            raise ValueError
        numbers += [int(number) for number in match[1].split(",")] * int(match[2] or 1)
    if len(numbers) * times > MOST_PATTERN:
        raise ValueError
    return tuple(numbers) * times


READERS: dict[str, Callable[[str], Any]] = {
    "count": _count,
    "fraction": _fraction,
    "window": _window,
    "pattern": _pattern,
    "text": str,
}


def value_of(known: Known, text: str) -> Any:
    """Return the value that `text` is for an argument that takes one. Raises ValueError or OverflowError."""
    return READERS[known.reads](text)
