"""The best strategies found so far, one for each layout."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.strategies import COLUMNS, Strategies
from shardwright.cost.trust.rarity import doubts
from shardwright.rounding import coarse

Key = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A row with its value and what orders it: the value with its doubt, or alone."""

    key: Key
    value: float
    row: Strategies


@dataclass(slots=True)
class Best:
    """Keeps, for each layout, the row of least value times (1 + its doubt); `limit` layouts are wanted; and of all rows
    the one of least value, whatever its doubt. Of equal ones the evenest split wins, then the lower columns: a total
    order, so that nothing depends on which row came first."""

    limit: int
    entries: dict[int, Entry] = field(default_factory=dict)
    least: Entry | None = None

    @property
    def threshold(self) -> float:
        """The value that a new layout may not exceed; infinite while fewer than `limit` are known."""
        if len(self.entries) < self.limit:
            return float("inf")
        return sorted(entry.key[0] for entry in self.entries.values())[self.limit - 1]

    def within_reach(self, values: Floats, doubted: Floats) -> Bools:
        """Return which rows of at least such values, with such doubts, may be among the best, [N]."""
        least = -np.inf if self.least is None else self.least.value
        return np.asarray((coarse(values * (1.0 + doubted)) <= self.threshold) | (values <= least))

    def offer(self, layouts: Ints, values: Floats, rows: Strategies) -> None:
        """Take in evaluated rows."""
        uneven = np.abs(rows.first_layers - rows.last_layers)
        rest = np.array([uneven, *(getattr(rows, name) for name in COLUMNS)], dtype=np.float64).T
        weighed = coarse(values * (1.0 + doubts(rows)))
        for position, tail in enumerate(map(tuple, rest.tolist())):
            layout, value = int(layouts[position]), float(values[position])
            key, known = (float(weighed[position]), *tail), self.entries.get(layout)
            if key < known.key if known else key[0] <= self.threshold:
                self.entries[layout] = Entry(key, value, rows.take(np.array([position])))
            if self.least is None or (value, *tail) < self.least.key:
                self.least = Entry((value, *tail), value, rows.take(np.array([position])))

    def ranked(self) -> list[tuple[float, int, Strategies]]:
        """Return value, layout and row of the `limit` best, best first."""
        found = sorted((entry.key[0], layout) for layout, entry in self.entries.items())
        return [(self.entries[layout].value, layout, self.entries[layout].row) for _, layout in found[: self.limit]]
