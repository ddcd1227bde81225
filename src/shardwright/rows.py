"""Tables in place of chains of `if` and of loops: rows of which some hold, entries of which some say something, and
values by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def holding(*rows: tuple[object, V]) -> tuple[V, ...]:
    """Return the values of the rows whose condition holds, in order."""
    return tuple(value for condition, value in rows if condition)


def stated(values: Mapping[K, V | None]) -> dict[K, V]:
    """Return the entries that say something: all but those that are None."""
    return {key: value for key, value in values.items() if value is not None}


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, keys and values in the order of the pairs."""
    values: dict[K, list[V]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return values
