"""A rank's parameters and gradients: flat buffers, and the tensors of the model as parts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from shardwright.runtime.buckets import Bucket, Piece, buckets_of
from shardwright.runtime.groups import Layout
from shardwright.runtime.model.parameters import Parameter
from shardwright.runtime.places import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A bucket with its memory: `weights` in the precision of the computation, `gradients` in fp32."""

    bucket: Bucket
    weights: torch.Tensor
    gradients: torch.Tensor

    def weight(self, piece: Piece) -> torch.Tensor:
        """Return a piece's part of the weights, in its shape."""
        return self.weights[piece.offset : piece.offset + piece.elements].view(piece.shape)

    def gradient(self, piece: Piece) -> torch.Tensor:
        """Return a piece's part of the gradients, in its shape."""
        return self.gradients[piece.offset : piece.offset + piece.elements].view(piece.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The parameters of one rank by name, with the buffers behind them in the order of their synchronisation.

    Where a rank holds one shard of a unit, as it does unless tensor-parallel degrees differ between replicas, a
    parameter is a view of its buffer; else it is a tensor of its own, and `publish` copies into it. `where` has the
    buffers and pieces of each parameter.
    """

    parameters: dict[str, torch.nn.Parameter]
    buffers: tuple[Buffer, ...]
    where: dict[str, tuple[tuple[Buffer, Piece], ...]]

    def publish(self) -> None:
        """Bring parameters that are no views up to date with their buffers."""
        for buffer in self.buffers:
            if not buffer.bucket.alone:
                for piece in buffer.bucket.pieces:
                    target = local_part(self.parameters[piece.parameter.name].detach(), piece)
                    target.copy_(buffer.weight(piece))


def make_store(layout: Layout, place: Place, dtype: torch.dtype, device: torch.device) -> Store:
    """Return the store of a rank, its weights not yet set."""
    buffers = tuple(_buffer(bucket, dtype, device) for bucket in buckets_of(layout, place))
    where: dict[str, list[tuple[Buffer, Piece]]] = {}
    for buffer in buffers:
        for piece in buffer.bucket.pieces:
            where.setdefault(piece.parameter.name, []).append((buffer, piece))
    parameters = {}
    for name, parts in where.items():
        buffer, piece = parts[0]
        alone = buffer.bucket.alone
        shape = local_shape([piece for _, piece in parts])
        tensor = buffer.weight(piece) if alone else torch.empty(shape, dtype=dtype, device=device)
        parameters[name] = torch.nn.Parameter(tensor)
    return Store(parameters=parameters, buffers=buffers, where={name: tuple(parts) for name, parts in where.items()})


def fill(store: Store, whole: Callable[[Parameter], torch.Tensor]) -> None:
    """Set all weights from whole parameters, which `whole` returns one at a time."""
    for parts in store.where.values():
        value = whole(parts[0][1].parameter)
        for buffer, piece in parts:
            buffer.weight(piece).copy_(cut(value, piece))
    store.publish()


def local_shape(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """Return the shape of what a rank holds of a parameter, from all its pieces there."""
    dim, shape = pieces[0].parameter.dim, pieces[0].shape
    if dim is None:
        return shape
    return (*shape[:dim], max(piece.local + piece.stop - piece.start for piece in pieces), *shape[dim + 1 :])


def cut(whole: torch.Tensor, piece: Piece) -> torch.Tensor:
    """Return a piece of a whole parameter."""
    dim = piece.parameter.dim
    return whole if dim is None else whole.narrow(dim, piece.start, piece.stop - piece.start)


def local_part(local: torch.Tensor, piece: Piece) -> torch.Tensor:
    """Return a piece of what the rank holds of a parameter."""
    dim = piece.parameter.dim
    return local if dim is None else local.narrow(dim, piece.local, piece.stop - piece.start)


def _buffer(bucket: Bucket, dtype: torch.dtype, device: torch.device) -> Buffer:
    return Buffer(
        bucket=bucket,
        weights=torch.zeros(bucket.elements, dtype=dtype, device=device),
        gradients=torch.zeros(bucket.elements, dtype=torch.float32, device=device),
    )
