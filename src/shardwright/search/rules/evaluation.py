"""What a rule means: vectorised over columns of candidates that broadcast together.

Numbers are 64-bit floats, exact for whole numbers up to 2**53. None equals None alone and has no order. Arithmetic with
None or with a word, and division by zero, have no value; every comparison with no value is false, `!=` too. The literal
None means "not set": it equals a missing value, a switch that is off, and the word `none`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from shardwright.arrays import Array, Bools, Floats
from shardwright.records import record
from shardwright.search.rules.tree import (
    Arithmetic,
    Compare,
    Expression,
    Logic,
    Negative,
    Not,
    Nothing,
    Number,
    Truth,
    Variable,
    Within,
    Word,
)


@record
class Column:
    """The values of a variable for many candidates, in any shape that broadcasts with those of other columns.

    Numbers and bools stand for themselves; where `words` is given, values are indices into it. `none` marks the
    candidates for which the variable is None; their value, an index in range all the same, does not count.
    """

    values: Array
    words: tuple[str, ...] | None = None
    none: Bools | None = None


_LITERAL_NONE = Column(values=np.asarray(np.nan), none=np.asarray(True))


def holds(expression: Expression, columns: Mapping[str, Column]) -> Bools:
    """Return where `expression` is true, in the broadcast shape of the columns that it names (`()` for none)."""
    with np.errstate(all="ignore"):
        return np.asarray(_truth(_value(expression, columns)))


def _value(node: Expression, columns: Mapping[str, Column]) -> Column:
    match node:
        case Variable(name=name):
            return columns[name]
        case Number(value=value) | Truth(value=value):
            return Column(values=np.asarray(value))
        case Word(text=text):
            return Column(values=np.asarray(0), words=(text,))
        case Nothing():
            return _LITERAL_NONE
        case Negative(operand=operand):
            return Column(values=-_numbers(_value(operand, columns)))
        case Arithmetic(first=first, rest=rest):
            total = _numbers(_value(first, columns))
            for operator, operand in rest:
                total = _ARITHMETIC[operator](total, _numbers(_value(operand, columns)))
            return Column(values=total)
        case Not(operand=operand):
            return Column(values=~_truth(_value(operand, columns)))
        case Logic(operator=operator, operands=operands):
            join = np.logical_and if operator == "&&" else np.logical_or
            return Column(values=functools.reduce(join, (_truth(_value(operand, columns)) for operand in operands)))
        case Compare(operator=operator, left=left, right=right):
            return Column(values=_compare(operator, _value(left, columns), _value(right, columns)))
        case Within(item=item, choices=choices):
            sought = _value(item, columns)
            equal = (_equal(sought, _value(choice, columns)) for choice in choices)
            return Column(values=functools.reduce(np.logical_or, equal))


def _truth(column: Column) -> Bools:
    """Return where a value counts as true: a bool that is, a number other than zero, a word other than `none`."""
    if column.words is not None:
        return ~_unset(column)
    if column.values.dtype == np.bool and column.none is None:
        return column.values
    numbers = _numbers(column)
    return np.asarray((numbers != 0) & ~np.isnan(numbers))


def _numbers(column: Column) -> Floats:
    """Return values as numbers, NaN where there is none."""
    if column.words is not None:
        return np.full(column.values.shape, np.nan)
    numbers = np.asarray(column.values, dtype=np.float64)
    return numbers if column.none is None else np.where(column.none, np.nan, numbers)


def _unset(column: Column) -> Bools:
    """Return where a value equals the literal None."""
    if column.words is not None:
        unset = np.array([word == "none" for word in column.words], dtype=np.bool)[column.values]
    elif column.values.dtype == np.bool:
        unset = ~column.values
    else:
        unset = np.zeros(column.values.shape, dtype=np.bool)
    return np.asarray(unset if column.none is None else unset | column.none)


def _compare(operator: str, left: Column, right: Column) -> Bools:
    if operator in _ORDER:
        return np.asarray(_ORDER[operator](_numbers(left), _numbers(right)))
    equal = _equal(left, right)
    return equal if operator == "==" else np.asarray(~equal & _defined(left) & _defined(right))


def _defined(column: Column) -> Bools:
    """Return where a column has a value; None is one."""
    if column.words is not None or column.values.dtype.kind != "f":
        return np.asarray(True)
    return np.asarray(~np.isnan(column.values) if column.none is None else ~np.isnan(column.values) | column.none)


def _equal(left: Column, right: Column) -> Bools:
    if left is _LITERAL_NONE or right is _LITERAL_NONE:
        return _unset(right if left is _LITERAL_NONE else left)
    if left.words is not None and right.words is not None:
        codes = {word: code for code, word in enumerate(left.words)}
        same = left.values == np.array([codes.get(word, -1) for word in right.words])[right.values]
    elif left.words is not None or right.words is not None:
        same = np.zeros(np.broadcast_shapes(left.values.shape, right.values.shape), dtype=np.bool)
    else:
        same = _numbers(left) == _numbers(right)
    if left.none is None and right.none is None:
        return np.asarray(same)
    none = np.asarray(False)
    left_none, right_none = (none if column.none is None else column.none for column in (left, right))
    return np.asarray((same & ~left_none & ~right_none) | (left_none & right_none))


def _divided(divide: Callable[[Floats, Floats], Floats]) -> Callable[[Floats, Floats], Floats]:
    """Return `divide` with NaN where the divisor is zero."""
    return lambda left, right: np.where(right == 0, np.nan, divide(left, right))


_ARITHMETIC: Mapping[str, Callable[[Floats, Floats], Floats]] = MappingProxyType(
    {
        "+": np.add,
        "-": np.subtract,
        "*": np.multiply,
        "/": _divided(np.true_divide),
        "//": _divided(np.floor_divide),
        "%": _divided(np.mod),
    }
)
_ORDER: Mapping[str, Callable[[Floats, Floats], Bools]] = MappingProxyType(
    {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
)
