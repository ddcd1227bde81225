"""Which buckets go to host memory: enough of them, and not one too many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.runtime.state.slots import in_host


@pytest.mark.parametrize(
    ("elements", "share", "expected"),
    [
        ([4, 10, 6], 0.0, set()),
        ([4, 10, 6], 0.5, {1}),
        ([4, 10, 6], 0.6, {0, 1}),
        ([4, 10, 6], 0.8, {1, 2}),
        ([4, 10, 6], 1.0, {0, 1, 2}),
        ([8, 8, 8], 0.5, {0, 2}),
        ([], 1.0, set()),
    ],
)
def test_buckets_in_host_memory(elements: list[int], share: float, expected: set[int]) -> None:
    assert in_host(elements, share) == expected


@given(st.lists(st.integers(1, 1000), max_size=12), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0]))
def test_at_least_the_share_and_no_bucket_more(elements: list[int], share: float) -> None:
    chosen = in_host(elements, share)
    inside = [elements[index] for index in chosen]
    target = share * sum(elements)
    assert sum(inside) >= target - 1e-6
    assert not inside or sum(inside) - min(inside) < target
