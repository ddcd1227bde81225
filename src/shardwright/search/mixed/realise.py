"""From compositions and their numbers to replicas with layers, recomputation and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.cost.strategy import Ints
from shardwright.search.mixed.draft import Draft
from shardwright.search.mixed.settings import Setting
from shardwright.search.mixed.shares import shares
from shardwright.search.mixed.sharing import after_together
from shardwright.search.mixed.splits import Line, Surroundings, best_line, retimed
from shardwright.search.mixed.tables import Layers, Table

Key = tuple[tuple[int, ...], int, Surroundings]
Composition = tuple[tuple[int, ...], int, int]  # units of each type, replicas, micro-batches of each


@dataclass(slots=True)
class Workshop:
    """Makes drafts of one setting; remembers the lines it has made."""

    setting: Setting
    table: Table
    layers: Layers
    modes: tuple[int, ...]
    lines: dict[Key, Line | None] = field(default_factory=dict)
    timed: dict[tuple[Line, int, Surroundings], Line | None] = field(default_factory=dict)

    def around(self, copies: int, used: Ints, most_after: float) -> list[Surroundings]:
        """Return in what lines of `copies` replicas on the types `used` may be costed: with the links of each type, and
        with the slowest of all."""
        joined = Surroundings(copies=copies, modes=self.modes, links=None, most_after=most_after)
        slowest = min((self.table.fabrics[kind] for kind in used), key=lambda links: links.inter_bytes_per_second)
        return [joined, replace(joined, links=slowest)] if copies > 1 and len(used) > 1 else [joined]

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

    def lines_of(self, chosen: Sequence[Composition], total: int, most_after: float) -> list[Line | None]:
        """Return the best line of each of the compositions `chosen`, were all alike."""
        copies = sum(number for _, number, _ in chosen)
        if copies > total or not chosen:
            return [None] * len(chosen)
        around = self.around(copies, np.zeros(1, dtype=np.int64), most_after)[0]
        return [self.line(counts, size, around) for counts, _, size in chosen]

    def draft(self, chosen: Sequence[Composition], total: int, most_after: float) -> Draft | None:
        """Return replicas of the compositions `chosen` that take `total` micro-batches together, or None if some
        composition cannot."""
        used = np.flatnonzero(np.array([counts for counts, _, _ in chosen]).sum(axis=0))
        copies = sum(number for _, number, _ in chosen)
        if copies > total or not len(used):
            return None
        made = [self._draft(chosen, total, around) for around in self.around(copies, used, most_after)]
        return min((draft for draft in made if draft is not None), key=lambda draft: draft.seconds, default=None)

    def _draft(self, chosen: Sequence[Composition], total: int, around: Surroundings) -> Draft | None:
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
        longest = max(line.seconds for line, _, _ in replicas) + after_together(self.table, replicas, self.modes)
        return Draft(setting=self.setting, replicas=tuple(replicas), seconds=longest)
