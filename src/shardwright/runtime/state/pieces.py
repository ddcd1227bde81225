"""The pieces of training state: what a checkpoint, a snapshot and a transfer are made of, and which of them a rank has
and writes. Needs no PyTorch.

A parameter is cut along one dimension, as tensor parallelism does, and a cut is spread over ranks as a flat row of
elements, as ZeRO does, in parts that need not be equal. So a *piece* is a kind of state ("weight", "first", "second")
of a parameter, a cut [start, stop) along the dimension that is cut, and the elements [low, high) of that cut in
row-major order. What one layout has written and another one needs meet in `overlaps`, as strided copies.

What several ranks hold alike is written once: of a bucket each holder writes its own part, as under ZeRO-1, whatever
the plan shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from shardwright.errors import bad
from shardwright.records import record
from shardwright.runtime.layout.groups import Layout, vocabulary
from shardwright.runtime.model.parameters import ModelParameter, trained_parameters
from shardwright.runtime.state.buckets import Bucket
from shardwright.runtime.state.recipe import MOMENTS, Method, rule

DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "uint8": np.dtype("u1")}
WEIGHT = "weight"


@record
class CutShape:
    """The shape of a whole parameter, without padding, and the dimension that cuts go along (0 if it is never cut)."""

    shape: tuple[int, ...]
    dim: int = 0

    @property
    def rows(self) -> int:
        """How many rows a cut has: the product of the dimensions before the one that is cut."""
        return prod(self.shape[: self.dim])

    @property
    def inner(self) -> int:
        """Elements of one index of the dimension that is cut, in one row."""
        return prod(self.shape[self.dim + 1 :])

    def whole(self, kind: str, parameter: str) -> StatePiece:
        """Return the piece that is all of a parameter of this shape."""
        stop = self.shape[self.dim] if self.shape else 1
        return StatePiece(kind=kind, parameter=parameter, start=0, stop=stop, low=0, high=prod(self.shape))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StatePiece:
    """Elements [low, high) of the cut [start, stop) of one kind of state of a parameter."""

    kind: str
    parameter: str
    start: int
    stop: int
    low: int
    high: int

    @property
    def elements(self) -> int:
        return self.high - self.low

    @property
    def name(self) -> str:
        """The piece in words, for messages."""
        return f"{self.kind} of {self.parameter}[{self.start}:{self.stop}] elements {self.low}:{self.high}"


@record
class StoredPiece:
    """A piece in a file, from byte `offset` on. `hash` is the xxh3-128 of its bytes in hexadecimal, "" if unknown."""

    piece: StatePiece
    file: str
    offset: int
    bytes: int
    dtype: str
    hash: str


@record
class PieceOverlap:
    """`count` runs of `length` elements that two pieces share: the first at `source` and `target` elements from the
    beginning of either, each next one `source_step` and `target_step` further on."""

    source: int
    target: int
    length: int
    count: int
    source_step: int
    target_step: int

    @property
    def elements(self) -> int:
        return self.length * self.count


def overlaps(source: StatePiece, target: StatePiece, shape: CutShape) -> tuple[PieceOverlap, ...]:
    """Return what two pieces of the same kind and parameter share, each element once. `shape` is the parameter's."""
    if (source.start, source.stop) == (target.start, target.stop):
        low, high = max(source.low, target.low), min(source.high, target.high)
        return (_run(low - source.low, low - target.low, high - low),) if low < high else ()
    if min(source.stop, target.stop) <= max(source.start, target.start):
        return ()
    rows = np.arange(shape.rows)
    (source_low, source_high), (target_low, target_high) = (_columns(p, rows, shape.inner) for p in (source, target))
    lows, highs = np.maximum(source_low, target_low), np.minimum(source_high, target_high)
    (there,) = np.nonzero(lows < highs)
    begins, lengths = lows[there], (highs - lows)[there]
    first = np.flatnonzero(np.diff(begins, prepend=-1) | np.diff(lengths, prepend=-1))  # of each strided copy
    counts = np.diff(first, append=len(there)).tolist()
    return tuple(
        PieceOverlap(
            source=_place(source, shape.inner, row, column),
            target=_place(target, shape.inner, row, column),
            length=elements,
            count=count,
            source_step=(source.stop - source.start) * shape.inner,
            target_step=(target.stop - target.start) * shape.inner,
        )
        for row, column, elements, count in zip(
            there[first].tolist(), begins[first].tolist(), lengths[first].tolist(), counts, strict=True
        )
    )


def copy_overlap(overlap: PieceOverlap, source: NDArray[Any], target: NDArray[Any]) -> None:
    """Copy what two pieces share; `source` and `target` are the flat elements of the pieces."""
    shape = (overlap.count, overlap.length)
    source_step, target_step = overlap.source_step * source.itemsize, overlap.target_step * target.itemsize
    taken = as_strided(source[overlap.source :], shape, (source_step, source.itemsize), writeable=False)
    as_strided(target[overlap.target :], shape, (target_step, target.itemsize))[...] = taken


def split(piece: StatePiece, most_elements: int) -> Iterator[StatePiece]:
    """Yield a piece in parts of at most so many elements, so that a hash covers no more than a reader may want."""
    for low in range(piece.low, piece.high, most_elements):
        yield replace(piece, low=low, high=min(low + most_elements, piece.high))


def require_held(piece: StatePiece, shape: CutShape, where: str) -> None:
    """Raise SpecError where a piece is no part of its parameter."""
    elements = (piece.stop - piece.start) * shape.rows * shape.inner
    if not (0 <= piece.start < piece.stop <= shape.shape[shape.dim] and 0 <= piece.low < piece.high <= elements):
        raise bad(where, f"has {piece.name}, which is no part of a tensor {list(shape.shape)}", "take another copy")


def _run(source: int, target: int, length: int) -> PieceOverlap:
    return PieceOverlap(source=source, target=target, length=length, count=1, source_step=length, target_step=length)


def _columns(piece: StatePiece, rows: NDArray[np.int64], inner: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the columns [low, high) of the whole parameter that a piece has in each row."""
    width, begin = (piece.stop - piece.start) * inner, piece.start * inner
    low = np.clip(piece.low - rows * width, 0, width) + begin
    return low, np.clip(piece.high - rows * width, 0, width) + begin


def _place(piece: StatePiece, inner: int, row: int, column: int) -> int:
    """Return how many elements into a piece a row and column of the whole parameter are."""
    return row * (piece.stop - piece.start) * inner + column - piece.start * inner - piece.low


@record
class Holding:
    """A piece of state, and at which element of its bucket it begins. `counted` is false where another tensor-parallel
    rank has the same and writes it."""

    piece: StatePiece
    at: int
    counted: bool


def cut_shape(parameter: ModelParameter, vocab: int) -> CutShape:
    """Return the shape of a parameter without padding of the vocabulary."""
    shape = (vocab, *parameter.shape[1:]) if parameter.padded else parameter.shape
    return CutShape(shape=shape, dim=parameter.dim or 0)


def parameter_shapes(layout: Layout) -> Mapping[str, CutShape]:
    """Return the shape of every parameter that is trained."""
    return {parameter.name: cut_shape(parameter, layout.plan.model.vocab) for parameter in _parameters(layout)}


def state_kinds(layout: Layout, method: Method) -> Mapping[str, tuple[str, ...]]:
    """Return the kinds of state of every parameter that is trained."""
    return {parameter.name: (WEIGHT, *MOMENTS[rule(method, parameter)]) for parameter in _parameters(layout)}


def _parameters(layout: Layout) -> Iterator[ModelParameter]:
    plan, rows = layout.plan, vocabulary(layout.plan)
    units = (trained_parameters(plan.model, plan.job.adapter, unit, rows) for unit in range(layout.head + 1))
    return (parameter for unit in units for parameter in unit)


def holdings_of(bucket: Bucket, start: int, stop: int, vocab: int, kind: str) -> Iterator[Holding]:
    """Yield what elements [start, stop) of a bucket are, in their order, padding left out."""
    for item in bucket.pieces:
        parameter = item.parameter
        shape = cut_shape(parameter, vocab)
        first, last = (
            (0, shape.shape[0]) if parameter.dim is None else (item.start, min(item.stop, shape.shape[shape.dim]))
        )
        used = (last - first) * shape.rows * shape.inner
        low, high = max(start - item.offset, 0), min(stop - item.offset, used)
        if low < high:
            piece = StatePiece(kind=kind, parameter=parameter.name, start=first, stop=last, low=low, high=high)
            yield Holding(piece=piece, at=item.offset + low, counted=item.counted)
