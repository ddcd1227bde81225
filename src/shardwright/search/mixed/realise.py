"""From compositions and their numbers to replicas with layers, recomputation and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.cost.strategy import Ints
from shardwright.search.mixed.draft import Draft
from shardwright.search.mixed.settings import Setting
from shardwright.search.mixed.shares import shares
from shardwright.search.mixed.splits import Line, Surroundings, best_line, retimed
from shardwright.search.mixed.tables import Layers, Table

Key = tuple[tuple[int, ...], int, Surroundings]


@dataclass(slots=True)
class Workshop:
    """Makes drafts of one setting; remembers the lines it has made."""

    setting: Setting
    table: Table
    layers: Layers
    modes: tuple[int, ...]
    lines: dict[Key, Line | None] = field(default_factory=dict)
    timed: dict[tuple[Line, int, Surroundings], Line | None] = field(default_factory=dict)

    def around(self, copies: int, used: Ints, most_after: float) -> Surroundings:
        """Return what lines of `copies` replicas on the types `used` are costed in."""
        slowest = min((self.table.fabrics[kind] for kind in used), key=lambda links: links.inter_bytes_per_second)
        return Surroundings(copies=copies, modes=self.modes, links=slowest, most_after=most_after)

    def line(self, counts: tuple[int, ...], micro_batches: int, around: Surroundings) -> Line | None:
        """Return the best line of a composition."""
        key = (counts, micro_batches, around)
        if key not in self.lines:
            self.lines[key] = best_line(self.table, self.layers, np.array(counts), micro_batches, around)
        return self.lines[key]

    def again(self, line: Line, micro_batches: int, around: Surroundings) -> Line | None:
        """Return `line` with another number of micro-batches."""
        key = (line, micro_batches, around)
        if key not in self.timed:
            self.timed[key] = retimed(self.table, line, micro_batches, around)
        return self.timed[key]

    def lines_of(
        self, chosen: Sequence[tuple[tuple[int, ...], int, int]], total: int, most_after: float
    ) -> list[Line | None]:
        """Return the best line of each of the compositions `chosen`, as `draft` uses them."""
        used = np.flatnonzero(np.array([counts for counts, _, _ in chosen]).sum(axis=0))
        copies = sum(number for _, number, _ in chosen)
        if copies > total or not len(used):
            return [None] * len(chosen)
        around = self.around(copies, used, most_after)
        return [self.line(counts, size, around) for counts, _, size in chosen]

    def draft(self, chosen: Sequence[tuple[tuple[int, ...], int, int]], total: int, most_after: float) -> Draft | None:
        """Return replicas of the compositions `chosen` (counts, copies, micro-batches) that take `total` micro-batches
        together, or None if some composition cannot."""
        used = np.flatnonzero(np.array([counts for counts, _, _ in chosen]).sum(axis=0))
        copies = sum(number for _, number, _ in chosen)
        if copies > total or not len(used):
            return None
        around = self.around(copies, used, most_after)
        lines = [self.line(counts, size, around) for counts, _, size in chosen]
        if any(line is None for line in lines):
            return None
        known = [line for line in lines if line is not None]

        def seconds(kind: int, size: int) -> float:
            if size < 1:
                return 0.0
            found = self.again(known[kind], size, around)
            return np.inf if found is None else found.seconds

        numbers = [number for _, number, _ in chosen]
        given = shares(numbers, [size for _, _, size in chosen], total, seconds)
        replicas = []
        for kind, count, size in given:
            found = self.again(known[kind], size, around)
            if found is None:
                return None
            replicas.append((found, count, size))
        longest = max(line.seconds for line, _, _ in replicas) + max(line.after for line, _, _ in replicas)
        return Draft(setting=self.setting, replicas=tuple(replicas), seconds=longest)
