"""Which pieces of state a rank has, and which it writes, derived from the plan alone. Needs no PyTorch.

What several ranks hold alike is written once: of a bucket each holder writes its own part, as under ZeRO-1, whatever
the plan shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwright.records import record
from shardwright.runtime.layout.groups import Layout, vocabulary
from shardwright.runtime.model.parameters import ModelParameter, trained_parameters
from shardwright.runtime.state.buckets import Bucket
from shardwright.runtime.state.pieces import WEIGHT, CutShape, StatePiece
from shardwright.runtime.state.recipe import MOMENTS, Method, rule


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
