"""The best strategies found so far, one for each layout."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.strategies import Strategies


@dataclass(slots=True)
class Best:
    """Keeps, for each layout, the row of least value; `limit` layouts are wanted. Equal values go to the row that
    came first, so the result does not depend on anything but the order of the input."""

    limit: int
    entries: dict[int, tuple[float, Strategies]] = field(default_factory=dict)

    @property
    def threshold(self) -> float:
        """The value that a new layout must beat; infinite while fewer than `limit` are known."""
        if len(self.entries) < self.limit:
            return float("inf")
        return sorted(value for value, _ in self.entries.values())[self.limit - 1]

    def offer(self, layouts: Ints, values: Floats, rows: Strategies) -> None:
        """Take in evaluated rows, of equal ones those with the evenest split first."""
        uneven = np.abs(rows.first_layers - rows.last_layers)
        for position in np.lexsort((uneven, values)):
            value, layout = float(values[position]), int(layouts[position])
            if value >= self.threshold and layout not in self.entries:
                break
            if layout not in self.entries or value < self.entries[layout][0]:
                self.entries[layout] = (value, rows.take(np.array([position])))

    def ranked(self) -> list[tuple[float, int, Strategies]]:
        """Return value, layout and row of the `limit` best, best first."""
        found = sorted((value, layout) for layout, (value, _) in self.entries.items())
        return [(value, layout, self.entries[layout][1]) for value, layout in found[: self.limit]]
