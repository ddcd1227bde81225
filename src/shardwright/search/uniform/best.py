"""The best strategies found so far, one for each layout."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.strategies import COLUMNS, Strategies


@dataclass(slots=True)
class Best:
    """Keeps, for each layout, the row of least value; `limit` layouts are wanted. Of equal values the evenest split
    wins, then the lower columns: a total order, so that nothing depends on which row came first."""

    limit: int
    entries: dict[int, tuple[tuple[float, ...], Strategies]] = field(default_factory=dict)

    @property
    def threshold(self) -> float:
        """The value that a new layout may not exceed; infinite while fewer than `limit` are known."""
        if len(self.entries) < self.limit:
            return float("inf")
        return sorted(key[0] for key, _ in self.entries.values())[self.limit - 1]

    def offer(self, layouts: Ints, values: Floats, rows: Strategies) -> None:
        """Take in evaluated rows."""
        uneven = np.abs(rows.first_layers - rows.last_layers)
        keys = np.array([values, uneven, *(getattr(rows, name) for name in COLUMNS)], dtype=np.float64).T
        for position, key in enumerate(map(tuple, keys.tolist())):
            layout = int(layouts[position])
            known = self.entries.get(layout)
            if key < known[0] if known else key[0] <= self.threshold:
                self.entries[layout] = (key, rows.take(np.array([position])))

    def ranked(self) -> list[tuple[float, int, Strategies]]:
        """Return value, layout and row of the `limit` best, best first."""
        found = sorted((key[0], layout) for layout, (key, _) in self.entries.items())
        return [(value, layout, self.entries[layout][1]) for value, layout in found[: self.limit]]
