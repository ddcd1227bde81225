"""From compositions and their numbers to replicas with layers, recomputation and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.arrays import Ints
from shardwright.rounding import coarse
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.drafts.joint_time import seconds_together, shares_unequally
from shardwright.search.mixed.drafts.micro_batch_shares import shares
from shardwright.search.mixed.drafts.split_times import SplitTimes
from shardwright.search.mixed.drafts.splits import (
    FittingSplits,
    Line,
    Surroundings,
    best_line,
    retimed,
    splits,
    stages_of,
)
from shardwright.search.mixed.tables.columns import Layers, Table
from shardwright.search.mixed.tables.ends import Ends
from shardwright.search.mixed.tables.settings import Setting

MOST_SPLITS = 64  # compositions whose splits are remembered
Key = tuple[tuple[int, ...], int, Surroundings]
Composition = tuple[tuple[int, ...], int, int]  # units of each type, replicas, micro-batches of each


@dataclass(slots=True)
class Workshop:
    """Makes drafts of one setting; remembers the lines it has made, and for a while the splits it has looked at."""

    setting: Setting
    table: Table
    layers: Layers
    modes: tuple[int, ...]
    ends: Ends
    lines: dict[Key, Line | None] = field(default_factory=dict)
    timed: dict[tuple[object, ...], Line | None] = field(default_factory=dict)
    splits: dict[Key, FittingSplits | None] = field(default_factory=dict)
    staged: dict[tuple[object, ...], SplitTimes] = field(default_factory=dict)
    laid_out: Workshop | None = None  # for replicas that share layers between types of unequal degree

    def around(self, copies: int, used: Ints) -> list[Surroundings]:
        """Return in what lines of `copies` replicas on the types `used` may be costed: with the links of each type, and
        with the slowest of all."""
        joined = Surroundings(copies=copies, modes=self.modes, ends=self.ends, slowest=None)
        slowest = int(used[self.table.links[used].argmin()])
        return [joined, replace(joined, slowest=slowest)] if copies > 1 and len(used) > 1 else [joined]

    def line(self, counts: tuple[int, ...], micro_batches: int, around: Surroundings) -> Line | None:
        """Return the best line of a composition."""
        key = (counts, micro_batches, around)
        if key not in self.lines:
            self.lines[key] = best_line(self.table, self._splits(counts, micro_batches, around), around)
        return self.lines[key]

    def _splits(self, counts: tuple[int, ...], micro_batches: int, around: Surroundings) -> FittingSplits | None:
        """Return the splits of a composition, whichever links they are judged by."""
        around = replace(around, slowest=None)
        key = (counts, micro_batches, around)
        if key not in self.splits:
            if len(self.splits) >= MOST_SPLITS:
                self.splits.clear()
            self.splits[key] = splits(self.table, self.layers, np.array(counts), micro_batches, around)
        return self.splits[key]

    def again(self, line: Line, micro_batches: int, copies: int) -> Line | None:
        """Return `line`, one of `copies` replicas, with another number of micro-batches."""
        key = (line.kinds, line.starts, micro_batches, copies)
        if key not in self.timed:
            stages = self.stages(line, micro_batches, copies)
            self.timed[key] = retimed(self.table, line, stages, micro_batches, copies)
        return self.timed[key]

    def stages(self, line: Line, micro_batches: int, copies: int) -> SplitTimes:
        """Return the stages of a line with another number of micro-batches: from its depth on all are the same."""
        key = (line.kinds, line.starts, min(micro_batches, len(line.kinds)), copies)
        if key not in self.staged:
            self.staged[key] = stages_of(self.table, line, micro_batches, copies, self.modes)
        return self.staged[key]

    def lines_of(self, chosen: Sequence[Composition], total: int) -> list[Line | None]:
        """Return the best line of each of the compositions `chosen`, were all alike."""
        copies = sum(number for _, number, _ in chosen)
        if copies > total or not chosen:
            return [None] * len(chosen)
        around = self.around(copies, np.zeros(1, dtype=np.int64))[0]
        return [self.line(counts, size, around) for counts, _, size in chosen]

    def draft(self, chosen: Sequence[Composition], total: int) -> Draft | None:
        """Return replicas of the compositions `chosen` that take `total` micro-batches together, or None if some
        composition cannot."""
        found = self._best(chosen, total)
        if found is None or not shares_unequally(self.table, [line for line, _, _ in found.replicas]):
            return found
        if self.laid_out is None:
            self.laid_out = Workshop(self.setting, self.table.laid_out(), self.layers, self.modes, self.ends)
        return self.laid_out.draft(chosen, total)

    def _best(self, chosen: Sequence[Composition], total: int) -> Draft | None:
        """Return the best draft of the compositions `chosen`, as if nothing were laid out twice."""
        used = np.flatnonzero(np.array([counts for counts, _, _ in chosen]).sum(axis=0))
        copies = sum(number for _, number, _ in chosen)
        if copies > total or not len(used):
            return None
        made: dict[tuple[object, ...], Draft | None] = {}
        for around in self.around(copies, used):
            lines = [self.line(counts, size, around) for counts, _, size in chosen]
            known = [line for line in lines if line is not None]
            shapes = tuple((line.kinds, line.starts) for line in known)
            if len(known) == len(chosen) and shapes not in made:
                made[shapes] = self._draft(chosen, known, total, copies)
        return min(
            (draft for draft in made.values() if draft is not None), key=lambda draft: draft.seconds, default=None
        )

    def _draft(self, chosen: Sequence[Composition], lines: Sequence[Line], total: int, copies: int) -> Draft | None:
        """Return the draft of compositions with the `lines` found for them. Micro-batches are shared out by what the
        lines take were all alike, then by what they take beside each other."""
        best, after = None, [line.after for line in lines]
        for _ in lines[:2]:
            given = self._shared(chosen, lines, total, copies, after)
            replicas = [(self.again(lines[kind], size, copies), count, size) for kind, count, size in given]
            known = [(line, count, size) for line, count, size in replicas if line is not None]
            if len(known) < len(replicas):
                break
            stages = [self.stages(line, size, copies) for line, _, size in known]
            together, beside = seconds_together(self.table, known, stages)
            if best is None or together < best.seconds:
                best = Draft(setting=self.setting, replicas=tuple(known), seconds=together)
            for (kind, _, _), late in zip(given, beside, strict=True):
                after[kind] = late
        return best

    def _shared(
        self, chosen: Sequence[Composition], lines: Sequence[Line], total: int, copies: int, after: Sequence[float]
    ) -> list[tuple[int, int, int]]:
        """Return how many replicas of each composition, by its place, take how many micro-batches."""

        def seconds(kind: int, size: int) -> float:
            if size < 1:
                return 0.0
            found = self.again(lines[kind], size, copies)
            return np.inf if found is None else coarse(found.seconds + after[kind])

        return shares([number for _, number, _ in chosen], [size for _, _, size in chosen], total, seconds)
