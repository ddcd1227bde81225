"""Where the shard of a rank lies in a tensor, how it is cut out of the whole or put back, and how a tensor is brought
from one property to another, by the collective that the program names.

A sharded dimension reads as outer × units × inner; a rank holds neighbouring units of every outer stretch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shardwright.records import record
from shardwright.spmd.fabric import Finish, RankFabric
from shardwright.synthesis.graph import Partial, Property, Replicated, Sharded, Sizes, local_shape
from shardwright.synthesis.program import Communication


@record
class RankPlace:
    """One rank among the units that all ranks hold."""

    rank: int
    sizes: Sizes

    @property
    def ranks(self) -> int:
        """How many ranks there are, where anything is sharded."""
        return len(next(iter(self.sizes.values())))

    def at(self, rank: int) -> RankPlace:
        return RankPlace(rank=rank, sizes=self.sizes)

    def shape(self, shape: tuple[int, ...], held: Property) -> tuple[int, ...]:
        """Return the shape of what this rank holds of a tensor of `shape`."""
        return local_shape(shape, held, self.sizes, self.rank)

    def units(self, held: Sharded) -> tuple[int, int]:
        """Return the first unit that this rank holds, and how many."""
        row = self.sizes[held.ratio, held.units]
        return sum(row[: self.rank]), row[self.rank]

    def first(self, held: Sharded, size: int) -> int:
        """Return the first element that this rank holds of a dimension of `size` that is one stretch."""
        assert held.outer == 1
        return self.units(held)[0] * (size // held.units)


def positions(held: Sharded, size: int, place: RankPlace) -> Tensor:
    """Return where the elements that the rank holds lie in the dimension of length `size`, in ascending order."""
    start, count = place.units(held)
    grid = torch.arange(size).view(held.outer, held.units, -1)
    return grid[:, start : start + count].flatten().contiguous()


def cut(whole: Tensor, held: Property, place: RankPlace) -> Tensor:
    """Return what the rank holds of `whole`; of a partial sum the first rank holds everything, the others zeros."""
    if isinstance(held, Sharded):
        start, count = place.units(held)
        parts = whole.unflatten(held.dim, (held.outer, held.units, whole.shape[held.dim] // (held.outer * held.units)))
        return parts.narrow(held.dim + 1, start, count).flatten(held.dim, held.dim + 2).contiguous()
    if isinstance(held, Partial) and place.rank:
        return torch.zeros_like(whole)
    return whole


def by_units(part: Tensor, held: Sharded) -> Tensor:
    """Return a shard as a contiguous tensor of its units: (units, the rest)."""
    inner_units = part.shape[held.dim] // held.outer
    split = part.unflatten(held.dim, (held.outer, inner_units)) if held.outer > 1 else part.unsqueeze(held.dim)
    return split.movedim(held.dim + 1, 0).contiguous()


def from_units(stack: Tensor, held: Sharded) -> Tensor:
    """Return the tensor of which `by_units` made `stack`, contiguous: some kernels of PyTorch take it for granted."""
    return stack.movedim(0, held.dim + 1).flatten(held.dim, held.dim + 1).contiguous()


def convert_all(
    parts: Sequence[Tensor],
    several: Sequence[Communication],
    shapes: Sequence[tuple[int, ...]],
    place: RankPlace,
    fabric: RankFabric,
) -> Callable[[], list[Tensor]]:
    """Start to convert what goes in one call (`schedule.joined`), all by one method."""
    if len(several) == 1:
        finish = convert(parts[0], several[0], shapes[0], place, fabric)
        return lambda: [finish()]
    match several[0].source, several[0].target:
        case Sharded(), Replicated():
            return _gathered_together(parts, several, shapes, place, fabric)
        case Partial(), Sharded():
            return _shared_out_together(parts, several, shapes, place, fabric)
    flat = torch.cat([part.flatten() for part in parts])
    finish = convert(flat, several[0], tuple(flat.shape), place, fabric)
    sizes = [part.numel() for part in parts]
    return lambda: [x.clone().view(shape) for x, shape in zip(finish().split(sizes), shapes, strict=True)]


def _gathered_together(
    parts: Sequence[Tensor],
    several: Sequence[Communication],
    shapes: Sequence[tuple[int, ...]],
    place: RankPlace,
    fabric: RankFabric,
) -> Callable[[], list[Tensor]]:
    """Gather the parts of each rank end to end, then put together what belongs to each tensor."""
    held = [communication.source for communication in several if isinstance(communication.source, Sharded)]
    counts = _counts(held, shapes, place)
    flat = torch.cat([by_units(x, sharding).flatten() for x, sharding in zip(parts, held, strict=True)])
    padded = several[0].method == "all_gather_padded"
    finish = fabric.all_gather(flat, [sum(of_rank) for of_rank in counts], padded=padded)

    def apart() -> list[Tensor]:
        pieces = finish().split([count for of_rank in counts for count in of_rank])
        joined = [torch.cat(pieces[number :: len(held)]) for number in range(len(held))]
        return [_from_flat(x, sharding, shape) for x, sharding, shape in zip(joined, held, shapes, strict=True)]

    return apart


def _shared_out_together(
    parts: Sequence[Tensor],
    several: Sequence[Communication],
    shapes: Sequence[tuple[int, ...]],
    place: RankPlace,
    fabric: RankFabric,
) -> Callable[[], list[Tensor]]:
    """Sum terms of which each rank gets its parts of all tensors end to end."""
    held = [communication.target for communication in several if isinstance(communication.target, Sharded)]
    counts = _counts(held, shapes, place)
    padded = several[0].method == "reduce_scatter_padded"
    finish = fabric.reduce_scatter(
        _by_rank(parts, held, shapes, place), [sum(of_rank) for of_rank in counts], padded=padded
    )

    def apart() -> list[Tensor]:
        pieces = finish().split(counts[place.rank])
        return [_from_flat(x.clone(), sharding, shape) for x, sharding, shape in zip(pieces, held, shapes, strict=True)]

    return apart


def _by_rank(
    parts: Sequence[Tensor], held: Sequence[Sharded], shapes: Sequence[tuple[int, ...]], place: RankPlace
) -> Tensor:
    """Return what the first rank is to hold of each tensor, then what the next is, end to end."""
    rows = [
        by_units(x, sharding).split(_rows(sharding, shape, place))
        for x, sharding, shape in zip(parts, held, shapes, strict=True)
    ]
    return torch.cat([piece.flatten() for rank_pieces in zip(*rows, strict=True) for piece in rank_pieces])


def _from_flat(flat: Tensor, held: Sharded, shape: tuple[int, ...]) -> Tensor:
    """Return the part of a tensor of global `shape` whose units lie in `flat` one after the other."""
    unit = (*shape[: held.dim], held.outer, *shape[held.dim + 1 :])
    return from_units(flat.view(flat.numel() // math.prod(unit), *unit), held)


def _counts(held: Sequence[Sharded], shapes: Sequence[tuple[int, ...]], place: RankPlace) -> list[list[int]]:
    counts = [[math.prod(shape) // sharding.units * units for units in place.sizes[sharding.ratio, sharding.units]]
            for sharding, shape in zip(held, shapes, strict=True)]  # fmt: skip
    return [list(of_rank) for of_rank in zip(*counts, strict=True)]


def convert(x: Tensor, message: Communication, shape: tuple[int, ...], place: RankPlace, fabric: RankFabric) -> Finish:
    """Start to bring `x`, this rank's part of a tensor of global `shape`, from `one.source` to `one.target`."""
    if x.dtype == torch.bool and message.method != "slice":
        finish = convert(x.to(torch.uint8), message, shape, place, fabric)
        return lambda: finish().bool()
    source, target = message.source, message.target
    match source, target:
        case Replicated(), _:
            return lambda: cut(x, target, place)
        case Sharded(), Partial():
            return lambda: _spread(x, source, shape, place)
        case Partial(), Replicated():
            return fabric.all_reduce(x, hierarchical=message.method == "all_reduce_hierarchical")
        case Sharded(), Replicated():
            return _gathered(x, source, shape, place, fabric, padded=message.method == "all_gather_padded")
        case Partial(), Sharded():
            padded = message.method == "reduce_scatter_padded"
            finish = fabric.reduce_scatter(by_units(x, target), _rows(target, shape, place), padded=padded)
            return lambda: from_units(finish(), target)
        case Sharded(), Sharded():
            return _exchanged(x, source, target, shape, place, fabric)
    raise AssertionError(f"no way from {source} to {target}")


def gathered(
    x: Tensor, held: Replicated | Partial | Sharded, shape: tuple[int, ...], place: RankPlace, fabric: RankFabric
) -> Tensor:
    """Return the whole tensor of which this rank holds `x`."""
    if isinstance(held, Sharded):
        return _gathered(x, held, shape, place, fabric, padded=False)()
    return fabric.all_reduce(x)() if isinstance(held, Partial) else x


def _rows(held: Sharded, shape: tuple[int, ...], place: RankPlace) -> list[int]:
    inner = shape[held.dim] // (held.outer * held.units)
    return [count * inner for count in place.sizes[held.ratio, held.units]]


def _gathered(
    x: Tensor, held: Sharded, shape: tuple[int, ...], place: RankPlace, fabric: RankFabric, *, padded: bool
) -> Finish:
    finish = fabric.all_gather(by_units(x, held), _rows(held, shape, place), padded=padded)
    return lambda: from_units(finish(), held)


def _spread(x: Tensor, held: Sharded, shape: tuple[int, ...], place: RankPlace) -> Tensor:
    """Return the shard where it lies in the whole tensor, among zeros."""
    where = positions(held, shape[held.dim], place).to(x.device)
    return x.new_zeros(shape).index_copy_(held.dim, where, x)


def _exchanged(
    x: Tensor, source: Sharded, target: Sharded, shape: tuple[int, ...], place: RankPlace, fabric: RankFabric
) -> Finish:
    """Send each rank what it is to hold of this rank's part, and put together what comes in."""
    others = [place.at(rank) for rank in range(place.ranks)]
    going = [_piece(source, place, target, other, shape) for other in others]
    coming = [_piece(source, other, target, place, shape) for other in others]
    counts = [math.prod(sizes) for sizes, _, _ in coming]
    finish = fabric.all_to_all(
        [x.index_select(target.dim, taken.to(x.device)).reshape(-1) for _, taken, _ in going], counts
    )

    def joined() -> Tensor:
        result = x.new_empty(place.shape(shape, target))
        for piece, (sizes, _, put) in zip(finish().split(counts), coming, strict=True):
            result.index_copy_(source.dim, put.to(x.device), piece.view(sizes))
        return result

    return joined


def _piece(
    source: Sharded, sender: RankPlace, target: Sharded, receiver: RankPlace, shape: tuple[int, ...]
) -> tuple[list[int], Tensor, Tensor]:
    """Return the shape of what one rank sends another, where it takes it from along the target's dimension of its own
    part, and where the other puts it along the source's dimension of the new part."""
    held = positions(source, shape[source.dim], sender)
    wanted = positions(target, shape[target.dim], receiver)
    sizes = list(shape)
    if source.dim != target.dim:
        sizes[source.dim], sizes[target.dim] = len(held), len(wanted)
        return sizes, wanted, held
    common = held[torch.isin(held, wanted)]
    sizes[source.dim] = len(common)
    return sizes, torch.searchsorted(held, common), torch.searchsorted(wanted, common)
