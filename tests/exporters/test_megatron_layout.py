"""Layout strings and Megatron's own splits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.exporters.megatron.layout import (
    EvenSplit,
    layer_counts_of_layout,
    layer_counts_of_ranges,
    layer_counts_of_split,
    layout_text,
    stage_ranges,
)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=24), st.integers(0, 2))
def test_layouts_say_what_they_were_made_of(counts: list[int], mtp_layers: int) -> None:
    assert layer_counts_of_layout(layout_text(counts, mtp_layers)) == tuple(counts)


@given(st.integers(1, 6), st.integers(1, 4), st.data())
def test_ranges_follow_the_order_of_execution(pipeline: int, chunks: int, data: st.DataObject) -> None:
    size = pipeline * chunks
    counts = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    stages = stage_ranges(counts, pipeline)
    assert layer_counts_of_ranges(stages) == tuple(counts)
    in_order = [stages[i % pipeline][i // pipeline] for i in range(size)]
    assert [layer for start, end in in_order for layer in range(start, end)] == list(range(sum(counts)))


def test_layouts_as_people_write_them() -> None:
    """The example in the docstring of Megatron's own parser, and a nested repetition."""
    assert layer_counts_of_layout("Ettt|(tt|)*29,m|L") == (3, *[2] * 29, 0, 0)
    assert layer_counts_of_layout("E | (t*2|)*3 t L") == (0, 2, 2, 2, 1)


@pytest.mark.parametrize("text", ["", "t*4", "Et*4", "t*4L", "EEtL", "Et|LtL", "Exx|L", "Emt|L", "E(t*99999)*99999L"])
def test_layouts_that_megatron_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="it "):
        layer_counts_of_layout(text)


@pytest.mark.parametrize(
    ("layers", "split", "counts"),
    [
        (8, EvenSplit(pipeline=4, chunks=1), (2, 2, 2, 2)),
        (8, EvenSplit(pipeline=2, chunks=2), (2, 2, 2, 2)),
        (10, EvenSplit(pipeline=4, chunks=1, first=3, last=1), (3, 3, 3, 1)),
        (10, EvenSplit(pipeline=4, chunks=1, first=1), (1, 3, 3, 3)),
        (12, EvenSplit(pipeline=3, chunks=2, first=2, last=4), (1, 3, 2, 1, 3, 2)),
        (6, EvenSplit(pipeline=4, chunks=1, embedding=True, loss=True), (1, 2, 2, 1)),
        (7, EvenSplit(pipeline=2, chunks=2, loss=True), (2, 2, 2, 1)),
    ],
)
def test_splits_without_a_layout(layers: int, split: EvenSplit, counts: tuple[int, ...]) -> None:
    assert layer_counts_of_split(layers, split) == counts


@pytest.mark.parametrize(
    ("layers", "split"),
    [
        (7, EvenSplit(pipeline=2, chunks=1)),
        (6, EvenSplit(pipeline=2, chunks=2)),
        (6, EvenSplit(pipeline=2, chunks=1, first=4, last=1)),
        (6, EvenSplit(pipeline=2, chunks=1, first=9)),
        (6, EvenSplit(pipeline=2, chunks=1, first=3, loss=True)),
    ],
)
def test_splits_that_megatron_refuses(layers: int, split: EvenSplit) -> None:
    with pytest.raises(ValueError, match="layers"):
        layer_counts_of_split(layers, split)
