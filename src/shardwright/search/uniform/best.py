"""The best strategies so far, one for each layout, and the arrangements that wait, in the order of their bounds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.iteration.batch import shape_groups
from shardwright.cost.strategies import COLUMNS, Strategies
from shardwright.cost.trust.rarity import rare_counts
from shardwright.plans.findings import RareSwitch
from shardwright.records import record
from shardwright.search.objective import Preference, preference, to_beat
from shardwright.search.space.expand import ExpandedRows

Key = tuple[float, ...]


@record(kw_only=False)
class Entry:
    """A row with its layout, its value, its number of rare switches (`cost.trust.rarity`), and what orders it among
    rows with as many."""

    key: Key
    layout: int
    rare: int
    value: float
    row: Strategies


@dataclass(slots=True)
class Best:
    """Keeps, for each layout and number of rare `switches`, the row of least value; `limit` layouts are wanted, in the
    order of `objective.preference`, where values up to `indifference` above the least are as good. Of equal ones the
    evenest split wins, then the lower columns: a total order, so that nothing depends on which row came first."""

    limit: int
    indifference: float
    switches: Collection[RareSwitch]
    entries: dict[tuple[int, int], Entry] = field(default_factory=dict)
    least: Entry | None = None  # the row of least value, however rare
    threshold: float = np.inf  # the value that a new layout may not exceed; infinite while fewer than `limit` are known

    def offer(self, layouts: Ints, values: Floats, rows: Strategies) -> None:
        """Take in evaluated rows."""
        uneven = np.abs(rows.first_layers - rows.last_layers)
        rest = np.array([values, uneven, *(getattr(rows, name) for name in COLUMNS)], dtype=np.float64).T
        rare, taken = rare_counts(rows, self.switches), False
        for position, key in enumerate(map(tuple, rest.tolist())):
            place = int(layouts[position]), int(rare[position])
            known, value = self.entries.get(place), float(values[position])
            if key < known.key if known else value <= self.threshold:
                entry = Entry(key, *place, value, rows.take(np.array([position])))
                self.entries[place], taken = entry, True
                if self.least is None or key < self.least.key:
                    self.least = entry
        if taken:
            within = self._within
            preferences = (key for key, _ in preferred(self.entries.values(), within))
            self.threshold = to_beat(preferences, self.limit, within)

    def ranked(self) -> list[Entry]:
        """Return the `limit` best of different layouts, best first."""
        return [entry for _, entry in preferred(self.entries.values(), self._within)[: self.limit]]

    def in_question(self) -> list[Entry]:
        """Return all that may be among the `limit` best whatever other machines reach, by value."""
        entries = (entry for entry in self.entries.values() if entry.value <= self.threshold)
        return sorted(entries, key=lambda entry: entry.key)

    @property
    def _within(self) -> float:
        return np.inf if self.least is None else self.least.value * (1.0 + self.indifference)


def preferred(entries: Iterable[Entry], within: float, more: int = 0) -> list[tuple[Preference, Entry]]:
    """Return the best entry of each layout, best first, where each has so many rare switches `more`."""
    best: dict[int, tuple[Preference, Entry]] = {}
    for entry in entries:
        key = preference(entry.value, entry.rare + more, within)
        known = best.get(entry.layout)
        if known is None or (key, entry.key) < (known[0], known[1].key):
            best[entry.layout] = key, entry
    return sorted(best.values(), key=lambda item: (item[0], item[1].layout))


@dataclass(slots=True)
class Waiting:
    """Rows with the lower bounds of their values: parts of one pipeline shape that are each sorted, by shape, and how
    far each has been taken."""

    parts: dict[tuple[int, int], list[tuple[ExpandedRows, Floats]]] = field(default_factory=dict)

    @property
    def lowest(self) -> float:
        """The least bound that waits; infinite if nothing does."""
        return min(map(_lowest, self.parts.values()), default=np.inf)

    def push(self, rows: ExpandedRows, values: Floats) -> None:
        """Add rows."""
        given = rows.strategies
        for group in shape_groups(given.pp, given.vpp):
            order = group[np.argsort(values[group], kind="stable")]
            shape = int(given.pp[order[0]]), int(given.vpp[order[0]])
            self.parts.setdefault(shape, []).append((rows.take(order), values[order]))

    def pop(self, below: float, most: int) -> ExpandedRows:
        """Remove and return the rows of lowest bound of the shape that has the lowest: at least one, about `most`
        (equal bounds stay together), none above `below`."""
        shape = min(self.parts, key=lambda shape: (_lowest(self.parts[shape]), shape))
        parts = self.parts.pop(shape)
        lowest = np.sort(np.concatenate([values[:most] for _, values in parts]))[:most]
        limit = min(below, float(lowest[-1]))
        ends = [int(np.searchsorted(values, limit, side="right")) for _, values in parts]
        popped = [rows.take(slice(0, end)) for (rows, _), end in zip(parts, ends, strict=True) if end]
        left = [(rows.take(slice(end, None)), values[end:]) for (rows, values), end in zip(parts, ends, strict=True)]
        if left := [(rows, values) for rows, values in left if len(values)]:
            self.parts[shape] = left
        return ExpandedRows.concatenated(popped)

    def rest(self) -> ExpandedRows | None:
        """Return all rows that still wait; None if there are none."""
        rows = [rows for parts in self.parts.values() for rows, _ in parts]
        return ExpandedRows.concatenated(rows) if rows else None


def _lowest(parts: list[tuple[ExpandedRows, Floats]]) -> float:
    return min(float(values[0]) for _, values in parts)
