"""What kind of work a kernel is, by its name: the first row of `data/kernels.csv` that matches."""

from __future__ import annotations

import re
from functools import cache, lru_cache

from shardwright.files import shipped_table

COMPUTE, COPY = "compute", "copy"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast", "other_collective")


@lru_cache(maxsize=65_536)
def kind_of(name: str) -> str:
    """Return the kind of a kernel: a collective, attention, gemm, optimizer, copy, or `compute` for any other."""
    folded = name.casefold()
    return next((kind for kind, pattern in _patterns() if pattern.search(folded)), COMPUTE)


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (row["kind"], re.compile(row["pattern"])) for row in shipped_table("shardwright.traces", "kernels.csv")
    )
