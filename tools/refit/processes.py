"""The same function of many items, in as many processes as there are processors."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# What forked processes work on: they have it from their parent, and only the number of an item is sent.
_WORK: list[tuple[Callable[[Any], Any], Sequence[Any]]] = []


def mapped(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return `function` of each item, in their order. What it remembers of an item the others do not know."""
    _WORK.append((function, items))
    try:
        with multiprocessing.get_context("fork").Pool(min(len(items), os.cpu_count() or 1)) as pool:
            return pool.map(_of_item, range(len(items)), chunksize=1)
    finally:
        _WORK.pop()


def _of_item(place: int) -> Any:
    function, items = _WORK[-1]
    return function(items[place])
