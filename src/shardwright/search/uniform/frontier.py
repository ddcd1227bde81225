"""Arrangements that wait to be completed, in the order of their bounds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import Floats
from shardwright.search.space.expand import ExpandedRows


@dataclass(slots=True)
class Waiting:
    """Rows with the lower bounds of their values: parts that are each sorted, and how far each has been taken."""

    parts: list[tuple[ExpandedRows, Floats]] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)

    @property
    def lowest(self) -> float:
        """The least bound that waits; infinite if nothing does."""
        heads = (values[done] for (_, values), done in zip(self.parts, self.taken, strict=True) if done < len(values))
        return float(min(heads, default=np.inf))

    def push(self, rows: ExpandedRows, values: Floats) -> None:
        """Add rows."""
        order = np.argsort(values, kind="stable")
        self.parts.append((rows.take(order), values[order]))
        self.taken.append(0)

    def pop(self, below: float, most: int) -> ExpandedRows:
        """Remove and return the rows of lowest bound: at least one, about `most` (equal bounds stay together), none
        above `below`."""
        open_values = [values[done : done + most] for (_, values), done in zip(self.parts, self.taken, strict=True)]
        lowest = np.sort(np.concatenate(open_values))[:most]
        limit = min(below, float(lowest[-1]))
        found = []
        for place, (rows, values) in enumerate(self.parts):
            end = int(np.searchsorted(values, limit, side="right"))
            if end > self.taken[place]:
                found.append(rows.take(slice(self.taken[place], end)))
                self.taken[place] = end
        return ExpandedRows.concatenated(found)

    def rest(self) -> ExpandedRows | None:
        """Return all rows that still wait; None if there are none."""
        rows = [rows.take(slice(done, None)) for (rows, _), done in zip(self.parts, self.taken, strict=True)]
        return ExpandedRows.concatenated(rows) if rows else None
