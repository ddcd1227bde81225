"""Every argument of Megatron-LM and of what is made of it: how many values it takes, and what it means for a plan.

`data/flags.csv` has the names and counts of values that the parser of core_v0.19.2 prints, and those of older releases
and other trainers of the family. `effect` is empty (a plan is not moved by it, or it is read), `uncounted` (moves time
or memory, which is not modelled) or `refused` (the run is another).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal, cast

from shardwright.files import shipped_table

Effect = Literal["", "uncounted", "refused"]


@dataclass(frozen=True, slots=True)
class Known:
    """`values` is how many words follow the argument, None for any number. `words` say what it changes."""

    values: int | None
    effect: Effect
    words: str


@cache
def known_flags() -> Mapping[str, Known]:
    """Return all arguments by name, written with hyphens."""
    rows = shipped_table("shardwright.importers.megatron", "flags.csv")
    return MappingProxyType(
        {
            hyphenated(row["flag"]): Known(
                None if row["values"] == "*" else int(row["values"]), cast("Effect", row["effect"]), row["words"]
            )
            for row in rows
        }
    )


def hyphenated(flag: str) -> str:
    """Return an argument's name with hyphens, as some trainers write it with underscores."""
    return flag.replace("_", "-")
