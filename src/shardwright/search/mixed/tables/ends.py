"""How many layers the first and the last stage of every pipeline may have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from shardwright.arrays import Ints

FEW = 4  # numbers for an end for each of which splits are made; of more, those splits count that have one by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Layers that the `first` and the `last` stage may have; nothing where any number will do."""

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def kept(self, starts: Ints) -> Ints:
        """Return those of the splits [N, P + 1] whose ends have what they may have."""
        kept = np.ones(len(starts), dtype=bool)
        for layers, wanted in ((starts[:, 1], self.first), (starts[:, -1] - starts[:, -2], self.last)):
            kept &= np.isin(layers, wanted) if wanted else True
        return starts if kept.all() else starts[kept]

    def pairs(self) -> Iterator[tuple[int | None, int | None]]:
        """Yield numbers for the first and the last stage, None where a split is free to have any."""
        yield from product(_few(self.first), _few(self.last))


def _few(wanted: tuple[int, ...]) -> tuple[int | None, ...]:
    return wanted if 0 < len(wanted) <= FEW else (None,)
