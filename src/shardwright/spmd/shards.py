"""Where the shard of a rank lies in a tensor, and how it is cut out of the whole or put back.

A sharded dimension reads as outer × units × inner; a rank holds neighbouring units of every outer stretch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shardwright.synthesis.properties import Partial, Property, Sharded, Sizes, local_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank among the units that all ranks hold."""

    rank: int
    sizes: Sizes

    @property
    def ranks(self) -> int:
        """How many ranks there are, where anything is sharded."""
        return len(next(iter(self.sizes.values())))

    def at(self, rank: int) -> RankPlace:
        """Return the place of another rank."""
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
    size = part.shape[held.dim]
    inner_units = size // held.outer
    split = part.unflatten(held.dim, (held.outer, inner_units)) if held.outer > 1 else part.unsqueeze(held.dim)
    return split.movedim(held.dim + 1, 0).contiguous()


def from_units(stack: Tensor, held: Sharded) -> Tensor:
    """Return the tensor of which `by_units` made `stack`, contiguous: some kernels of PyTorch take it for granted."""
    return stack.movedim(0, held.dim + 1).flatten(held.dim, held.dim + 1).contiguous()
