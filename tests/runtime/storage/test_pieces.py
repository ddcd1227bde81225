"""Pieces of one layout meet those of another element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardwright.errors import SpecError
from shardwright.runtime.state.pieces import CutShape, StatePiece, overlaps, split
from shardwright.runtime.storage.manifest import LARGEST_PIECE_BYTES, assemble, by_parameter, read_piece, write_pieces


@st.composite
def shapes(draw: st.DrawFn) -> CutShape:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    return CutShape(shape=shape, dim=draw(st.integers(0, len(shape) - 1)))


@st.composite
def pieces(draw: st.DrawFn, shape: CutShape) -> StatePiece:
    size = shape.shape[shape.dim]
    start = draw(st.integers(0, size - 1))
    stop = draw(st.integers(start + 1, size))
    elements = (stop - start) * shape.rows * shape.inner
    low = draw(st.integers(0, elements - 1))
    return StatePiece(
        kind="weight", parameter="p", start=start, stop=stop, low=low, high=draw(st.integers(low + 1, elements))
    )


def numbers_of(piece: StatePiece, shape: CutShape) -> NDArray[np.float32]:
    """The number of every element of a piece in the whole parameter, by slicing it."""
    whole = np.arange(np.prod(shape.shape), dtype=np.float32).reshape(shape.shape)
    return whole.take(range(piece.start, piece.stop), axis=shape.dim).reshape(-1)[piece.low : piece.high]


@given(st.data())
def test_overlaps_copy_what_two_pieces_share_and_nothing_else(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    source, target = data.draw(pieces(shape)), data.draw(pieces(shape))
    held, wanted = numbers_of(source, shape), numbers_of(target, shape)
    out = np.full(target.elements, -1.0, np.float32)
    found = overlaps(source, target, shape)
    for overlap in found:
        for run in range(overlap.count):
            begin, end = overlap.source + run * overlap.source_step, overlap.target + run * overlap.target_step
            out[end : end + overlap.length] = held[begin : begin + overlap.length]
    shared = np.isin(wanted, held)
    assert np.array_equal(out, np.where(shared, wanted, -1.0))
    assert sum(overlap.elements for overlap in found) == shared.sum()


@given(data=st.data())
def test_any_cut_is_assembled_from_any_other_through_files(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    shape = data.draw(shapes())
    size = shape.shape[shape.dim]
    degree = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    each = size // degree
    cuts = [(start, start + each) for start in range(0, size, each)]
    elements = each * shape.rows * shape.inner
    most = data.draw(st.integers(1, elements))
    whole = (StatePiece(kind="weight", parameter="p", start=a, stop=b, low=0, high=elements) for a, b in cuts)
    written = [part for piece in whole for part in split(piece, most)]
    stored = write_pieces(folder, "a.state", [(piece, numbers_of(piece, shape)) for piece in written])
    target = data.draw(pieces(shape))
    out = np.full(target.elements, -1.0, np.float32)
    assemble({target: out}, by_parameter(stored), {"p": shape}, lambda item: read_piece(folder, item), "here")
    assert np.array_equal(out, numbers_of(target, shape))


def test_a_missing_part_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, shape = tmp_path_factory.mktemp("lacks"), CutShape(shape=(4, 3))
    half = StatePiece(kind="first", parameter="p", start=0, stop=4, low=0, high=6)
    stored = write_pieces(folder, "a.state", [(half, numbers_of(half, shape))])
    whole = StatePiece(kind="first", parameter="p", start=0, stop=4, low=0, high=12)
    with pytest.raises(SpecError, match=r"here: has 6 of 12 values of the first of p\[0:4\]"):
        assemble(
            {whole: np.zeros(12, np.float32)},
            by_parameter(stored),
            {"p": shape},
            lambda item: read_piece(folder, item),
            "here",
        )


def test_large_pieces_are_cut_so_that_readers_of_a_part_read_little_more(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    elements = 2 * LARGEST_PIECE_BYTES // 4 + 5
    piece = StatePiece(kind="weight", parameter="p", start=0, stop=elements, low=0, high=elements)
    stored = write_pieces(tmp_path_factory.mktemp("large"), "a.state", [(piece, np.ones(elements, np.float32))])
    assert [item.bytes for item in stored] == [LARGEST_PIECE_BYTES, LARGEST_PIECE_BYTES, 20]


@pytest.mark.parametrize("change", ["flip", "cut", "remove"])
def test_changed_bytes_are_found_and_named(change: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, shape = tmp_path_factory.mktemp("changed"), CutShape(shape=(8,))
    piece = StatePiece(kind="weight", parameter="p", start=0, stop=8, low=0, high=8)
    (stored,) = write_pieces(folder, "a.state", [(piece, numbers_of(piece, shape))])
    path = folder / "a.state"
    content = bytearray(path.read_bytes())
    content[17] ^= 1
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes(content if change == "flip" else content[:-4])
    words = {"flip": "has changed", "cut": "is cut off", "remove": "cannot be read"}
    with pytest.raises(SpecError, match=words[change]):
        read_piece(folder, stored)


def test_values_that_are_not_finite_are_not_written(tmp_path_factory: pytest.TempPathFactory) -> None:
    piece = StatePiece(kind="weight", parameter="p", start=0, stop=2, low=0, high=2)
    with pytest.raises(FloatingPointError, match=r"weight of p\[0:2\]"):
        write_pieces(tmp_path_factory.mktemp("nan"), "a.state", [(piece, np.array([1.0, np.nan], np.float32))])
