"""Every argument of Megatron-LM and of what is made of it, and what it means for a plan.

`data/flags.csv` has a row for each that the parser of core_v0.19.2 prints, and for those of older releases and other
trainers of the family (`source`):

* `values`: how many words follow it, `*` for any number
* `effect`: empty (a plan is not moved by it, or it is read), `uncounted` (moves time or memory, not modelled) or
  `refused` (the run is another); `words` say what it changes, or why it moves nothing
* `reads`: how its value is read (`READERS`), or `switch`; empty where it is not
* `default`: what its source takes where it is missing; switches are off
* `choices`: the values that can be read, where not every one can
* `usual`: values with which an `uncounted` argument changes nothing
* `means`: the argument of core_v0.19.2 that it is another name of
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, cast

from shardwright.files import shipped_table

Effect = Literal["", "uncounted", "refused"]
SWITCH = "switch"
LARGEST_COUNT = 10**18
PATTERN_TERM = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?")
MOST_PATTERN = 100_000


@dataclass(frozen=True, slots=True)
class Known:
    """A row of the table. `values` is None for any number."""

    values: int | None
    effect: Effect
    words: str
    reads: str
    default: str
    choices: tuple[str, ...]
    usual: tuple[str, ...]
    means: str


@cache
def known_flags() -> Mapping[str, Known]:
    """Return all arguments by name, written with hyphens."""
    rows = shipped_table("shardwright.importers.megatron", "flags.csv")
    return MappingProxyType(
        {
            hyphenated(row["flag"]): Known(
                values=None if row["values"] == "*" else int(row["values"]),
                effect=cast("Effect", row["effect"]),
                choices=tuple(row["choices"].split()),
                usual=tuple(row["usual"].split()),
                **{name: row[name] for name in ("words", "reads", "default", "means")},
            )
            for row in rows
        }
    )


def read_as(flag: str) -> str:
    """Return the argument of core_v0.19.2 that `flag` is, itself where it is no other name of one."""
    known = known_flags().get(flag)
    return known.means or flag if known else flag


def is_read(flag: str) -> bool:
    """Return whether an argument says something about a plan."""
    return flag in known_flags() and bool(known_flags()[flag].reads)


def hyphenated(flag: str) -> str:
    """Return an argument's name with hyphens, as some trainers write it with underscores."""
    return flag.replace("_", "-")


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
