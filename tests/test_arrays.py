"""Columns are taken and joined together; packed keys tell rows apart, or say that they cannot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.arrays import Bools, Columns, Ints, bits_of, distinct, distinct_rows, packed, unpacked


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(Columns):
    flag: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(Columns):
    number: Ints
    inner: Inner


def outer(numbers: list[int]) -> Outer:
    column = np.array(numbers, dtype=np.int64)
    return Outer(number=column, inner=Inner(flag=column % 2 == 0))


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9), min_size=1))
def test_rows_stay_together(one, other):
    whole = Outer.concatenated([outer(one), outer(other)])
    assert len(whole) == len(whole.inner) == len(one) + len(other)
    order = np.argsort(whole.number, kind="stable")
    for taken in (whole.take(order), whole.take(whole.number > 4), whole.take(slice(1, None))):
        assert ((taken.number % 2 == 0) == taken.inner.flag).all()
    np.testing.assert_array_equal(whole.take(order).number, sorted([*one, *other]))


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 1), st.integers(0, 1 << 40)), min_size=1))
def test_keys_are_equal_where_rows_are(rows):
    columns = list(np.array(rows, dtype=np.int64).T)
    bits = bits_of(columns)
    keys = packed(columns, bits)
    assert len(set(keys.tolist())) == len(set(rows))
    np.testing.assert_array_equal(unpacked(keys, bits), columns)


@pytest.mark.parametrize(("value", "bits"), [(8, 3), (-1, 3), (1 << 20, 20)])
def test_a_key_never_overflows_in_silence(value, bits):
    with pytest.raises(OverflowError):
        packed([np.array([0, value])], [bits])
    with pytest.raises(OverflowError):
        packed([np.array([1]), np.array([1])], [40, 24])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2))))
def test_distinct_values_and_rows_are_those_of_numpy(rows):
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    np.testing.assert_array_equal(distinct(table), np.unique(table))
    np.testing.assert_array_equal(distinct_rows(table), np.unique(table, axis=0))
