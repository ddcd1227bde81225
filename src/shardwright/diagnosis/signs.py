"""Lines of logs that tell a cause by themselves: patterns in `data/signs.csv`, each with what the line means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from shardwright.files import shipped_table

LONGEST_LINE = 2_000  # characters that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A line that tells a cause: where it stands, how many like it there are, and what it means."""

    cause: str
    place: str
    text: str
    meaning: str
    count: int


def signs_of(lines: Iterable[str], name: str) -> tuple[Sign, ...]:
    """Return the signs in the lines of a file, each with its first line."""
    first: dict[int, tuple[int, str]] = {}
    counts: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        if not any(word in line for word in _words()):
            continue
        for row, (_, _, pattern) in enumerate(_patterns()):
            if pattern.search(line[:LONGEST_LINE]):
                first.setdefault(row, (number, line.strip()[:200]))
                counts[row] = counts.get(row, 0) + 1
    return tuple(
        Sign(
            cause=_patterns()[row][0],
            place=f"{name}, line {number}",
            text=text,
            meaning=_patterns()[row][1],
            count=counts[row],
        )
        for row, (number, text) in sorted(first.items())
    )


@cache
def _patterns() -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    rows = shipped_table("shardwright.diagnosis", "signs.csv")
    return tuple((row["cause"], row["meaning"], re.compile(row["pattern"])) for row in rows)


@cache
def _words() -> tuple[str, ...]:
    """Parts of lines of which a sign has one: most lines have none, and cost no pattern."""
    return tuple(dict.fromkeys(row["word"] for row in shipped_table("shardwright.diagnosis", "signs.csv")))
