"""Muon (Jordan et al. 2024; Liu et al., arXiv 2502.16982): steps along the orthogonalised momentum of each matrix.

A rank has the momentum of what it updates, however ZeRO and tensor parallelism cut and spread matrices. So every matrix
of the layers has an owner among the ranks that hold something of it: in a step these send it their parts (`sources`,
each element once), it orthogonalises the whole, and sends each of them the result for what that one updates
(`targets`). Owners get about equal work. All ranks derive the same from the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from shardwright.cost.compute.orthogonalisation import STEPS, orthogonalisation_flops
from shardwright.records import record
from shardwright.rows import grouped
from shardwright.runtime.layout.groups import Layout, Place
from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.state.buckets import Bucket, buckets_of
from shardwright.runtime.state.pieces import (
    CutShape,
    Holding,
    PieceOverlap,
    StatePiece,
    cut_shape,
    holdings_of,
    overlaps,
)
from shardwright.runtime.state.slots import Slot, Update

UPDATE = "update"
Family = tuple[tuple[int, ...], int | None]  # the units and the block of experts that a bucket has a shard of


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
            span = part if layout.plan.optimizer.distributed else (0, bucket.elements)
            for side, (start, stop) in ((sources, part), (targets, span)):
                for held in holdings_of(bucket, start, stop, vocab, UPDATE):
                    if held.piece.parameter in shapes and (held.counted or side is targets):
                        side[held.piece.parameter].append(Fragment(rank=rank, bucket=bucket, holding=held))
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


COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that takes singular values to about 1
MATCHED = 0.2  # root mean square of AdamW's updates, to which those of a matrix are scaled (arXiv 2502.16982 §2.2)
SMALLEST_NORM = 1e-7
TOGETHER_ELEMENTS = 1 << 26  # of equal matrices that are orthogonalised at once

Own = tuple[Slot, int, int]  # elements of a slot, from one to another
Steps = Sequence[tuple[Own, torch.Tensor]]  # what a rank updates, with its flat steps
Part = tuple[int, StatePiece]  # a piece of one of the matrices that a rank owns, by its number


@record
class Route:
    """An exchange as one rank sees it, each a list by the other's place in the group: what it sends to owners and gets
    back of its slots, and of the matrices that it owns the `parts` that come and those that go back, `results`."""

    group: Any
    owned: tuple[CutShape, ...]
    sent: list[list[Own]]
    updated: list[list[Own]]
    parts: list[list[Part]]
    results: list[list[Part]]


@record
class Orthogonaliser:
    """The routes of a rank. Matrices travel and are orthogonalised in `dtype`: bf16, or fp32 where the run computes in
    that."""

    routes: tuple[Route, ...]
    dtype: torch.dtype
    device: torch.device


def make_orthogonaliser(
    exchanges: Iterable[Exchange],
    groups: ProcessGroups,
    rank: int,
    slots: Sequence[Slot],
    dtype: torch.dtype,
    device: torch.device,
) -> Orthogonaliser:
    return Orthogonaliser(
        routes=tuple(_route(exchange, groups.find("matrices", exchange.ranks), rank, slots) for exchange in exchanges),
        dtype=torch.float32 if dtype == torch.float32 else torch.bfloat16,
        device=device,
    )


def orthogonalised(update: Update, orthogonaliser: Orthogonaliser) -> Steps:
    """Return the steps of matrices of layers. All ranks must call it together, those that update none too. It changes
    nothing: until all have their steps, one that fails leaves the others where they were."""
    momentum, steps = update.recipe.muon_momentum, dict[Slot, torch.Tensor]()
    for slot, first, pushed in _pushed(update):
        steps[slot] = pushed.lerp_(first.lerp(pushed, 1.0 - momentum), momentum)  # Nesterov's
    return [item for route in orthogonaliser.routes for item in _exchanged_steps(route, steps, orthogonaliser)]


def muon(update: Update, steps: Steps) -> None:
    """Update matrices of layers by their orthogonalised steps."""
    for slot, first, pushed in _pushed(update):
        first.lerp_(pushed, 1.0 - update.recipe.muon_momentum)
        slot.master.mul_(1.0 - update.rate * update.decay * (1.0 - update.verdict.left_out))
    for (slot, start, stop), result in steps:
        rate = update.rate * (1.0 - update.verdict.on(slot.master.device).left_out)
        slot.master[start:stop].sub_(result.to(slot.master.device, torch.float32) * rate)


def _pushed(update: Update) -> Iterator[tuple[Slot, torch.Tensor, torch.Tensor]]:
    """Yield slots with their momentum and what pushes it, which is itself where the step is left out."""
    for slot, gradient, first in zip(update.slots, update.gradients, update.moments("first"), strict=True):
        there = update.verdict.on(first.device)
        yield slot, first, torch.where(there.left_out > 0.0, first, gradient / there.divisor)


def newton_schulz(matrices: torch.Tensor) -> torch.Tensor:
    """Return matrices [count, m, n] with their singular values brought to about 1, in their own precision."""
    first, second, third = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.flatten(1).norm(dim=1).clamp(min=SMALLEST_NORM)[:, None, None]
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=second, alpha=third), x, beta=first)
    return x.mT if tall else x


def _route(exchange: Exchange, group: Any, rank: int, slots: Sequence[Slot]) -> Route:
    ranks, place = exchange.ranks, {other: number for number, other in enumerate(exchange.ranks)}
    lists: list[list[list[Any]]] = [[[] for _ in ranks] for _ in range(4)]
    sent, updated, parts, results = lists
    owned: list[CutShape] = []
    by_bucket = grouped((slot.buffer.bucket.key, slot) for slot in slots)
    for matrix in exchange.matrices:
        number = len(owned)
        if matrix.owner == rank:
            owned.append(matrix.shape)
        for fragments, pieces, other in ((matrix.sources, sent, parts), (matrix.targets, updated, results)):
            for fragment in fragments:
                if fragment.rank == rank:
                    pieces[place[matrix.owner]].append(_own(fragment, by_bucket))
                if matrix.owner == rank:
                    other[place[fragment.rank]].append((number, fragment.holding.piece))
    return Route(group=group, owned=tuple(owned), sent=sent, updated=updated, parts=parts, results=results)


def _own(fragment: Fragment, by_bucket: Mapping[Any, list[Slot]]) -> Own:
    """Return where a fragment of this rank lies in its slots."""
    start, count = fragment.holding.at, fragment.holding.piece.elements
    slot = next(s for s in by_bucket[fragment.bucket.key] if s.start <= start and start + count <= s.stop)
    return slot, start - slot.start, start - slot.start + count


def _exchanged_steps(
    route: Route, steps: Mapping[Slot, torch.Tensor], how: Orthogonaliser
) -> Iterator[tuple[Own, torch.Tensor]]:
    """Yield what this rank updates by the matrices of a route."""
    flat = [[steps[slot][start:stop].to(how.device, how.dtype) for slot, start, stop in spans] for spans in route.sent]
    came = _exchanged(flat, [sum(p.elements for _, p in parts) for parts in route.parts], route.group, how)
    wholes = [torch.empty(prod(cut.shape), dtype=how.dtype, device=how.device) for cut in route.owned]
    for number, piece, values in _along(chain.from_iterable(route.parts), came):
        for overlap in overlaps(piece, route.owned[number].whole(UPDATE, ""), route.owned[number]):
            _target(overlap, wholes[number]).copy_(_source(overlap, values))
    _orthogonalise(wholes, route.owned)
    back = [[_taken(wholes[number], piece, route.owned[number]) for number, piece in parts] for parts in route.results]
    del wholes
    got = _exchanged(back, [sum(stop - start for _, start, stop in spans) for spans in route.updated], route.group, how)
    at = 0
    for span in chain.from_iterable(route.updated):
        count = span[2] - span[1]
        yield span, got[at : at + count]
        at += count


def _exchanged(out: list[list[torch.Tensor]], received: list[int], group: Any, how: Orthogonaliser) -> torch.Tensor:
    """Return the flat values that the ranks of a group sent here, `received` of each; each gets its part of `out`."""
    sent = torch.cat([torch.empty(0, dtype=how.dtype, device=how.device), *chain.from_iterable(out)])
    if group is None:
        return sent
    came = torch.empty(sum(received), dtype=how.dtype, device=how.device)
    dist.all_to_all_single(came, sent, received, [sum(t.numel() for t in tensors) for tensors in out], group=group)
    return came


def _orthogonalise(wholes: Sequence[torch.Tensor], shapes: Sequence[CutShape]) -> None:
    """Orthogonalise whole matrices in place, equal ones together, and scale them to AdamW's steps."""
    alike = grouped((cut.shape, whole) for whole, cut in zip(wholes, shapes, strict=True))
    for shape, all_of_them in alike.items():
        together = max(TOGETHER_ELEMENTS // prod(shape), 1)
        for begin in range(0, len(all_of_them), together):
            some = all_of_them[begin : begin + together]
            results = newton_schulz(torch.stack(some).view(len(some), *shape)) * (MATCHED * max(shape) ** 0.5)
            for whole, result in zip(some, results, strict=True):
                whole.copy_(result.reshape(-1))


def _along(parts: Iterable[Part], values: torch.Tensor) -> Iterator[tuple[int, StatePiece, torch.Tensor]]:
    """Yield parts with their flat values, which lie one after another."""
    at = 0
    for number, piece in parts:
        yield number, piece, values[at : at + piece.elements]
        at += piece.elements


def _taken(whole: torch.Tensor, piece: StatePiece, cut: CutShape) -> torch.Tensor:
    """Return the flat values of a piece of a matrix."""
    out = whole.new_empty(piece.elements)
    for overlap in overlaps(cut.whole(UPDATE, ""), piece, cut):
        _target(overlap, out).copy_(_source(overlap, whole))
    return out


def _source(overlap: PieceOverlap, values: torch.Tensor) -> torch.Tensor:
    return values[overlap.source :].as_strided((overlap.count, overlap.length), (overlap.source_step, 1))


def _target(overlap: PieceOverlap, values: torch.Tensor) -> torch.Tensor:
    return values[overlap.target :].as_strided((overlap.count, overlap.length), (overlap.target_step, 1))
