"""Which rank orthogonalises which matrix of the layers, and what of it the others hold. Needs no PyTorch.

Muon needs an update's whole matrices, which ZeRO and tensor parallelism cut and spread. So every matrix has an owner
among the ranks that hold something of it: these send it their parts (`sources`, each element once), and it sends each
of them the result for what that one updates (`targets`). Owners get about equal work. All ranks derive the same from
the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from shardwright.cost.compute.orthogonalisation import orthogonalisation_flops
from shardwright.records import record
from shardwright.runtime.layout.groups import Layout, Place
from shardwright.runtime.state.buckets import Bucket, buckets_of
from shardwright.runtime.state.pieces import CutShape, Holding, cut_shape, holdings_of

UPDATE = "update"
Family = tuple[tuple[int, ...], int | None]
"""The units and the block of experts that a bucket has a shard of."""


@record
class Fragment:
    """What a rank holds of a matrix: a piece of it, in a bucket."""

    rank: int
    bucket: Bucket
    holding: Holding


@record
class Matrix:
    """A matrix of a layer, and the rank that orthogonalises it."""

    name: str
    shape: CutShape
    owner: int
    sources: tuple[Fragment, ...]
    targets: tuple[Fragment, ...]


@record
class Exchange:
    """The matrices that the same `ranks` hold."""

    ranks: tuple[int, ...]
    matrices: tuple[Matrix, ...]


def exchanges_of(layout: Layout, place: Place) -> tuple[Exchange, ...]:
    """Return the exchanges that a rank takes part in, in the order in which all ranks make them."""
    known = {place.rank: buckets_of(layout, place)}
    by_ranks: dict[tuple[int, ...], list[Bucket]] = {}
    for family in dict.fromkeys((bucket.units, bucket.block) for bucket in known[place.rank]):
        shards = tuple(_shards(layout, family, known))
        ranks = tuple(sorted({rank for bucket in shards for rank in bucket.ranks}))
        by_ranks.setdefault(ranks, []).extend(shards)
    exchanges = (
        Exchange(ranks=ranks, matrices=_matrices(layout, buckets, ranks)) for ranks, buckets in by_ranks.items()
    )
    return tuple(exchange for exchange in exchanges if exchange.matrices)


def _shards(layout: Layout, family: Family, known: dict[int, tuple[Bucket, ...]]) -> Iterator[Bucket]:
    units, block = family
    unit = layout.units[units[0]]
    for shard, ranks in enumerate(unit.holders if block is None else unit.experts[block]):
        if ranks[0] not in known:
            known[ranks[0]] = buckets_of(layout, layout.places[ranks[0]])
        yield next(b for b in known[ranks[0]] if b.key == (units, block, shard))


def _matrices(layout: Layout, buckets: Sequence[Bucket], ranks: tuple[int, ...]) -> tuple[Matrix, ...]:
    vocab = layout.plan.model.vocab
    shapes = {
        piece.parameter.name: cut_shape(piece.parameter, vocab)
        for bucket in buckets
        for piece in bucket.pieces
        if piece.parameter.hidden
    }
    sources: dict[str, list[Fragment]] = {name: [] for name in shapes}
    targets: dict[str, list[Fragment]] = {name: [] for name in shapes}
    for bucket in buckets:
        for rank, part in zip(bucket.ranks, bucket.parts, strict=True):
            own = part if layout.plan.optimizer.distributed else (0, bucket.elements)
            for found, (start, stop) in ((sources, part), (targets, own)):
                for held in holdings_of(bucket, start, stop, vocab, UPDATE):
                    if held.piece.parameter in shapes and (held.counted or found is targets):
                        found[held.piece.parameter].append(Fragment(rank=rank, bucket=bucket, holding=held))
    owners = _owners(shapes, ranks)
    return tuple(
        Matrix(name=name, shape=shape, owner=owners[name], sources=tuple(sources[name]), targets=tuple(targets[name]))
        for name, shape in shapes.items()
    )


def _owners(shapes: dict[str, CutShape], ranks: Iterable[int]) -> dict[str, int]:
    """Return the owner of each matrix: the largest first, to the rank with the least work."""
    work = [(0.0, rank) for rank in ranks]
    heapify(work)
    owners = {}
    for name in sorted(shapes, key=lambda name: (-orthogonalisation_flops(*shapes[name].shape), name)):
        load, rank = heappop(work)
        owners[name] = rank
        heappush(work, (load + orthogonalisation_flops(*shapes[name].shape), rank))
    return owners
