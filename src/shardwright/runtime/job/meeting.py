"""Ranks wait for each other by the store of the run: without a collective, whose time limit is for steps."""

from __future__ import annotations

import time
from math import inf
from typing import Any

POLL_SECONDS = 0.05


def meet(store: Any, where: str, ranks: int, seconds: float = inf) -> int:
    """Wait until all ranks are there, or for so many seconds; return as which of them this one came, from 1."""
    place: int = store.add(where, 1)
    end = time.monotonic() + seconds
    while store.add(where, 0) < ranks and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    return place
