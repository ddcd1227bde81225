"""Types of arrays, and structs of arrays: columns of equal length that are taken and joined together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

KEY_BITS = 63


def picked(values: Array, rows: Array) -> Array:
    """Return the given rows (indices or a mask) of `values` [N, K], each column in one piece: sums, maxima and products
    over few columns then run along the rows, many times as fast as along the columns."""
    rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
    return values.T.take(rows, axis=1).T


def distinct(values: Array) -> Array:
    """Return the distinct values, ascending: `np.unique`, of which the first call imports all of `numpy.ma`."""
    ordered = np.sort(values, axis=None)
    return ordered.compress(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])


def by_number(numbers: Ints, of: Callable[[Ints], Array]) -> Array:
    """Return `of` the numbers, which are not negative: it is asked for each distinct one alone."""
    there = np.bincount(numbers) > 0
    return np.asarray(of(np.flatnonzero(there))[(np.cumsum(there) - 1)[numbers]])


def distinct_rows(rows: Array) -> Array:
    """Return the distinct rows of [N, K], in ascending order of their columns, the first one foremost."""
    ordered = rows[np.lexsort(rows.T[::-1])]
    return ordered.compress(np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))[: len(ordered)], axis=0)


def places_by_value(values: Array) -> list[Ints]:
    """Return the places of each distinct value, in the order of the values and of the places."""
    if not len(values):
        return []
    order = np.argsort(values, kind="stable")
    return list(np.split(order, np.flatnonzero(np.diff(values[order])) + 1))


def least_enough(low: Ints, high: Ints, enough: Callable[[Ints], Bools]) -> Ints:
    """Return the least numbers from `low` to `high` that are `enough`, [N], where all above one that is are too; `high`
    where none below it is."""
    while (low < high).any():
        middle = (low + high) // 2
        reached = enough(middle)
        high, low = np.where(reached, middle, high), np.where(reached, low, np.minimum(middle + 1, high))
    return high


class Columns:
    """Base of frozen dataclasses whose fields are arrays with rows along their first axis, or such dataclasses."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.__dataclass_fields__))))

    def take(self, rows: Array | slice) -> Self:
        """Return the given rows (indices, a mask or a slice)."""
        taken = {}
        for name in self.__dataclass_fields__:
            column = getattr(self, name)
            taken[name] = column.take(rows) if isinstance(column, Columns) else column[rows]
        return type(self)(**taken)

    @classmethod
    def concatenated(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts in order."""
        joined = {}
        for name in cls.__dataclass_fields__:
            columns = [getattr(part, name) for part in parts]
            nested = isinstance(columns[0], Columns)
            joined[name] = type(columns[0]).concatenated(columns) if nested else np.concatenate(columns)
        return cls(**joined)


def bits_of(columns: Sequence[Array]) -> tuple[int, ...]:
    """Return the bits that the greatest value of each column of whole numbers needs."""
    return tuple(int(column.max(initial=0)).bit_length() for column in columns)


def packed(columns: Sequence[Array], bits: Sequence[int]) -> Ints:
    """Return one number for each row of columns of whole numbers, each with the bits that it is given (`bits_of`), [N]:
    equal rows have equal numbers. Raises OverflowError where a number needs more bits than it has."""
    if sum(bits) > KEY_BITS:
        raise OverflowError(f"a key has {KEY_BITS} bits")
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column, width in zip(columns, bits, strict=True):
        values = column.astype(np.int64, copy=False)
        if (values >> width).any():
            raise OverflowError(f"a column of a key does not fit in {width} bits")
        key = (key << width) | values
    return key


def unpacked(keys: Ints, bits: Sequence[int]) -> list[Ints]:
    """Return the columns of whole numbers that keys were made of (`packed`)."""
    columns = []
    for width in reversed(bits):
        columns.append(keys & ((1 << width) - 1))
        keys = keys >> width
    return columns[::-1]
