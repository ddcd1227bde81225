"""A rank's parameters and gradients: flat buffers, and the tensors of the model as parts of them.

Under ZeRO-2 a rank keeps its own part of the summed gradients of a bucket, under ZeRO-3 of the weights too
(`buckets.kept_apart`); the whole is then there only while its units compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import torch

from shardwright.records import record
from shardwright.rows import grouped
from shardwright.runtime.layout.groups import Layout, Place
from shardwright.runtime.model.parameters import ModelParameter
from shardwright.runtime.state.buckets import Bucket, Piece, buckets_of, frozen_buckets_of, kept_apart, matrix_of


@record
class FlatView:
    """A parameter as a view of a flat buffer, from element `offset` on."""

    name: str
    offset: int
    shape: tuple[int, ...]


@record
class Flat:
    """All elements of a bucket, of which the rank keeps those from `start` on: `kept`. Where that is a part, the memory
    of the `whole` is there only from `open` to `close`."""

    whole: torch.Tensor
    kept: torch.Tensor
    start: int

    @property
    def sharded(self) -> bool:
        """Whether the rank keeps a part alone."""
        return self.kept is not self.whole

    def piece(self, piece: Piece) -> torch.Tensor:
        return self.whole[piece.offset : piece.offset + piece.elements].view(piece.shape)

    def view(self, flat: FlatView) -> torch.Tensor:
        return self.whole[flat.offset : flat.offset + prod(flat.shape)].view(flat.shape)

    def part(self, start: int, stop: int) -> torch.Tensor:
        """Return elements [start, stop) of the whole, which must be among those that are kept."""
        return self.kept[start - self.start : stop - self.start]

    def put(self, start: int, values: torch.Tensor) -> None:
        """Set the elements from `start` on, as far as they are kept."""
        low, high = max(start, self.start), min(start + values.numel(), self.start + self.kept.numel())
        if low < high:
            self.part(low, high).copy_(values.reshape(-1)[low - start : high - start])

    def open(self) -> None:
        """Make the memory of the whole, its elements not yet set."""
        if self.sharded:
            self.whole.untyped_storage().resize_(self.whole.nbytes)

    def close(self) -> None:
        """Free the memory of the whole."""
        if self.sharded:
            self.whole.untyped_storage().resize_(0)


@record(eq=False)
class Buffer:
    """A bucket with its memory: `weights` in the precision of the computation or in bytes, `gradients` in fp32, none
    where they are frozen."""

    bucket: Bucket
    weights: Flat
    gradients: Flat


@record
class Store:
    """The parameters of one rank by name, with the buffers behind them: those that are trained, in the order of their
    synchronisation, and `frozen` ones.

    Where a rank holds one shard of a unit, as it does unless tensor-parallel degrees differ between replicas, a
    parameter is a view of its buffer, and its gradient one of the buffer's, to which autograd adds; else both are
    tensors of their own, and `publish` copies into it. A matrix of all experts of a block is one parameter, under the
    name of the first; a rank has several blocks where another replica spreads experts over more ranks. `where` has the
    buffers and pieces of each parameter of the model.
    """

    parameters: dict[str, torch.nn.Parameter]
    buffers: tuple[Buffer, ...]
    frozen: tuple[Buffer, ...]
    where: dict[str, tuple[tuple[Buffer, Piece], ...]]

    def publish(self) -> None:
        """Bring trained parameters that are no views up to date with their buffers."""
        self._publish(self.buffers)

    def publish_all(self) -> None:
        """Do so with frozen ones too."""
        self._publish((*self.buffers, *self.frozen))

    def _publish(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            if not buffer.bucket.alone:
                for piece in buffer.bucket.pieces:
                    target = local_part(self.parameters[piece.parameter.name].detach(), piece)
                    target.copy_(buffer.weights.piece(piece))


def make_store(layout: Layout, place: Place, dtype: torch.dtype, device: torch.device) -> Store:
    """Return the store of a rank, its weights not yet set."""
    where: dict[str, list[tuple[Buffer, Piece]]] = {}
    parameters: dict[str, torch.nn.Parameter] = {}
    trained, frozen = (
        tuple(_buffers(layout, place, buckets, dtype, device, parameters, where, frozen=still))
        for buckets, still in ((buckets_of(layout, place), False), (frozen_buckets_of(layout, place), True))
    )
    return Store(
        parameters=parameters,
        buffers=trained,
        frozen=frozen,
        where={name: tuple(parts) for name, parts in where.items()},
    )


def _buffers(
    layout: Layout,
    place: Place,
    buckets: Sequence[Bucket],
    dtype: torch.dtype,
    device: torch.device,
    parameters: dict[str, torch.nn.Parameter],
    where: dict[str, list[tuple[Buffer, Piece]]],
    *,
    frozen: bool,
) -> list[Buffer]:
    """Return buckets with memory, and note their parameters and where these are."""
    buffers: list[Buffer] = []
    apart: dict[str, list[Piece]] = {}
    for bucket in buckets:
        weights, gradients = kept_apart(layout, bucket)
        nothing, kept = torch.empty(0, device=device), torch.uint8 if bucket.in_bytes else dtype
        buffer = Buffer(
            bucket=bucket,
            weights=_flat(bucket, place.rank, kept, device, sharded=weights),
            gradients=Flat(whole=nothing, kept=nothing, start=0)
            if frozen
            else _flat(bucket, place.rank, torch.float32, device, sharded=gradients),
        )
        buffers.append(buffer)
        for piece in bucket.pieces:
            where.setdefault(piece.parameter.name, []).append((buffer, piece))
            if not bucket.alone:
                apart.setdefault(piece.parameter.name, []).append(piece)
        for view in views_of(bucket) if bucket.alone else ():
            gradient = None if frozen else buffer.gradients.view(view)
            parameters[view.name] = _parameter(buffer.weights.view(view), gradient)
        buffer.weights.close()
        buffer.gradients.close()
    for name, pieces in apart.items():
        kept = dtype if pieces[0].parameter.matrix is None else torch.uint8
        whole = torch.empty(local_shape(pieces), dtype=kept, device=device)
        parameters[name] = _parameter(whole, None if frozen else torch.zeros_like(whole, dtype=torch.float32))
    return buffers


def views_of(bucket: Bucket) -> Iterator[FlatView]:
    """Yield the parameters of a bucket as autograd knows them: the same matrix of all its experts of a layer is one,
    under the name of the first."""
    kin = grouped((matrix_of(piece.parameter), piece) for piece in bucket.pieces)
    for first, *others in kin.values():
        shape = first.shape if first.parameter.expert is None else (1 + len(others), *first.shape)
        yield FlatView(name=first.parameter.name, offset=first.offset, shape=shape)


def fill(store: Store, whole: Callable[[ModelParameter], torch.Tensor]) -> None:
    """Set all weights from whole parameters, which `whole` returns one at a time."""
    for parts in store.where.values():
        value = whole(parts[0][1].parameter)
        for buffer, piece in parts:
            buffer.weights.put(piece.offset, cut(value, piece))
    store.publish_all()


def local_shape(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """Return the shape of what a rank holds of a parameter, from all its pieces there."""
    dim, shape = pieces[0].parameter.dim, pieces[0].shape
    if dim is None:
        return shape
    return (*shape[:dim], max(piece.local + piece.stop - piece.start for piece in pieces), *shape[dim + 1 :])


def cut(whole: torch.Tensor, piece: Piece) -> torch.Tensor:
    dim = piece.parameter.dim
    return whole if dim is None else whole.narrow(dim, piece.start, piece.stop - piece.start)


def local_part(local: torch.Tensor, piece: Piece) -> torch.Tensor:
    """Return a piece of what the rank holds of a parameter."""
    dim = piece.parameter.dim
    return local if dim is None else local.narrow(dim, piece.local, piece.stop - piece.start)


def _parameter(weights: torch.Tensor, gradients: torch.Tensor | None) -> torch.nn.Parameter:
    """Return a parameter to whose fp32 gradient autograd adds in place, whatever the precision of the weights; without
    a gradient it is frozen."""
    if gradients is None:
        return torch.nn.Parameter(weights, requires_grad=False)
    parameter: Any = torch.nn.Parameter(weights)
    parameter.grad_dtype = gradients.dtype
    parameter.grad = gradients
    return parameter  # type: ignore[no-any-return]


def _flat(bucket: Bucket, rank: int, dtype: torch.dtype, device: torch.device, *, sharded: bool) -> Flat:
    whole = torch.zeros(bucket.elements, dtype=dtype, device=device)
    if not sharded:
        return Flat(whole=whole, kept=whole, start=0)
    start, stop = bucket.own(rank, sharded=True)
    return Flat(whole=whole, kept=torch.zeros(stop - start, dtype=dtype, device=device), start=start)
