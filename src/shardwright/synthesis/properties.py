"""How the parts that the ranks hold make up a tensor of the reference graph.

A sharded dimension of length `outer` · `units` · `inner` is cut between its `units`: a rank with n of them holds, of
each of the `outer` stretches, n · `inner` neighbours. So a batch sharded by rows stays sharded when a view joins it
with the sequence (units = rows, inner = sequence length), and a fused projection of queries, keys and values is sharded
by heads (outer = 3, units = heads, inner = head size). How many units each rank has depends on the ratio and on the
number of units alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from shardwright.records import record

COMPUTE = "compute"  # the ratio of work: rows of the batch
FEATURES = "features"  # the ratio of work that is cut otherwise: by features, heads, classes, experts
STATE = "state"  # the ratio of parameters, gradients and optimizer state that are gathered for use


@record(kw_only=False)
class Replicated:
    """Every rank holds the whole tensor."""

    def __str__(self) -> str:
        return "replicated"


@record(kw_only=False)
class Partial:
    """The tensor is the sum of what the ranks hold."""

    def __str__(self) -> str:
        return "partial sum"


@record(kw_only=False)
class Sharded:
    """Dimension `dim` is cut between its `units`, in the proportions of `ratio`."""

    dim: int
    units: int
    ratio: str = COMPUTE
    outer: int = 1

    def __str__(self) -> str:
        stretches = f"{self.outer}×" if self.outer > 1 else ""
        return f"sharded {self.dim} ({stretches}{self.units} by {self.ratio})"

    def local_shape(self, shape: tuple[int, ...], held: int) -> tuple[int, ...]:
        """Return the shape of the part with `held` of the units."""
        inner = shape[self.dim] // (self.outer * self.units)
        return (*shape[: self.dim], self.outer * held * inner, *shape[self.dim + 1 :])


Property: TypeAlias = Replicated | Partial | Sharded
REPLICATED, PARTIAL = Replicated(), Partial()
PLAIN: dict[str, Property] = {"replicated": REPLICATED, "partial": PARTIAL}

Sizes: TypeAlias = Mapping[tuple[str, int], tuple[int, ...]]
"""The units of each rank, by ratio and number of units in all."""


def local_shape(shape: tuple[int, ...], held: Property, sizes: Sizes, rank: int) -> tuple[int, ...]:
    """Return the shape of what `rank` holds of a tensor of `shape`."""
    if isinstance(held, Sharded):
        return held.local_shape(shape, sizes[held.ratio, held.units][rank])
    return shape


def document(held: Property) -> list[str | int]:
    """Return `held` as JSON: ["replicated"], ["partial"] or ["sharded", dim, units, ratio, outer]."""
    if isinstance(held, Sharded):
        return ["sharded", held.dim, held.units, held.ratio, held.outer]
    return ["partial" if isinstance(held, Partial) else "replicated"]


def from_document(part: list[str | int]) -> Property:
    """Return the property that `document` wrote."""
    kind, *rest = part
    if kind == "sharded":
        dim, units, ratio, outer = rest
        return Sharded(int(dim), int(units), str(ratio), int(outer))
    return PLAIN[str(kind)]
