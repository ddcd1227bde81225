"""From compositions and their numbers to replicas with layers, recomputation and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.rounding import coarse
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.drafts.split_times import SplitTimes, tails, update_seconds, weights_gather_seconds
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
from shardwright.search.mixed.tables.compositions import Ends
from shardwright.search.mixed.tables.settings import Setting

MOST_SPLITS = 64  # compositions whose splits are remembered
Key = tuple[tuple[int, ...], int, Surroundings]
Composition = tuple[tuple[int, ...], int, int]  # units of each type, replicas, micro-batches of each
Replicas = Sequence[tuple[Line, int, int]]  # line, count, micro-batches
TimeOf = Callable[[int, int], float]  # replica kind, micro-batches -> seconds


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
        best = self._best(chosen, total)
        if best is None or not shares_unequally(self.table, [line for line, _, _ in best.replicas]):
            return best
        if self.laid_out is None:
            self.laid_out = Workshop(self.setting, self.table.laid_out(), self.layers, self.modes, self.ends)
        return self.laid_out.draft(chosen, total)

    def _best(self, chosen: Sequence[Composition], total: int) -> Draft | None:
        """Return the best draft of the compositions `chosen`, as if nothing were laid out twice."""
        used = np.flatnonzero(np.array([counts for counts, _, _ in chosen]).sum(axis=0))
        copies = sum(number for _, number, _ in chosen)
        if copies > total or not len(used) or total % self.table.together:
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
            replica = self.again(lines[kind], size, copies)
            return np.inf if replica is None else coarse(replica.seconds + after[kind])

        step = self.table.together
        numbers = [number // step for _, number, _ in chosen]
        given = shares(numbers, [size for _, _, size in chosen], total // step, seconds)
        return [(kind, count * step, size) for kind, count, size in given]


def seconds_together(table: Table, replicas: Replicas, times: Sequence[SplitTimes]) -> tuple[float, list[float]]:
    """Return the seconds of an iteration of replicas with the stages `times`, and of them what each replica takes after
    its pipeline, under the better rank order: the copies of a stage next to each other, or the stages of a copy."""
    copies = sum(count for _, count, _ in replicas)
    update, norm = 0.0, 0.0
    for (line, _, _), split in zip(replicas, times, strict=True):
        kinds = np.array(line.kinds)
        update = max(update, float(update_seconds(table, kinds, split, copies)[0].max()))
        norm = max(norm, float(table.norm_seconds(len(kinds) * copies)[0, kinds].max()))
    orders = (False, True) if copies > 1 else (False,)
    after = [_after(table, replicas, times, copies, outermost) for outermost in orders]
    busy = [max(line.seconds + late for (line, _, _), late in zip(replicas, later, strict=True)) for later in after]
    best = coarse(np.array(busy)).argmin()
    return coarse(busy[best] + update + norm), after[best]


def shares_unequally(table: Table, lines: Sequence[Line]) -> bool:
    """Return whether stages of a type that would be laid out twice share layers with those of another degree."""
    if not table.copied_bytes.any():
        return False
    begin = np.concatenate([line.starts[:-1] for line in lines])
    end = np.concatenate([line.starts[1:] for line in lines])
    kinds = np.concatenate([line.kinds for line in lines])
    shared = (begin[:, None] < end[None, :]) & (begin[None, :] < end[:, None])
    unequal = table.wide[kinds][:, None] != table.wide[kinds][None, :]
    return bool((shared & unequal & (table.copied_bytes[kinds] > 0.0)).any())


def _after(table: Table, replicas: Replicas, times: Sequence[SplitTimes], copies: int, outermost: bool) -> list[float]:
    """Return the seconds that each replica cannot hide in its pipeline."""
    after = []
    once = _once(table, replicas, [split.weights[:, 0] for split in times], copies, outermost)
    for (line, _, _), split, seconds in zip(replicas, times, once, strict=True):
        reduce, gather = tails(table, split, seconds[None, :])
        tied = float(table.tied_between(np.array(line.kinds), len(line.kinds), 1 if outermost else copies))
        after.append(float(reduce.max()) + float(gather.max()) + tied)
    return after


def _once(table: Table, replicas: Replicas, weights: Sequence[Floats], copies: int, outermost: bool) -> list[Floats]:
    """Return the seconds to gather a byte of each of the `weights` of every stage, [2, P] for each replica, [P]."""
    if copies < 2 and (table.holders <= 1.0).all():
        return [np.zeros(len(line.kinds)) for line, _, _ in replicas]
    begin = np.concatenate([line.starts[:-1] for line, _, _ in replicas])
    end = np.concatenate([line.starts[1:] for line, _, _ in replicas])
    kinds = np.concatenate([line.kinds for line, _, _ in replicas])
    number = np.concatenate([np.full(len(line.kinds), count) for line, count, _ in replicas])
    sizes = np.concatenate(weights, axis=1)
    shared = (begin[:, None] < end[None, :]) & (begin[None, :] < end[:, None])
    held = (shared * number) @ (kinds[:, None] == np.arange(table.types))
    local = _least_in_a_domain(table, replicas, kinds, shared, outermost)
    once = np.zeros(len(kinds))
    for kind, *there in sorted(set(zip(kinds.tolist(), *(held > 0).T.tolist(), strict=True))):
        rows = (kinds == kind) & ((held > 0) == there).all(axis=1)
        groups = table.unit[kind].groups(held[rows].sum(axis=1), local[rows])
        links = table.links_seen(kind, np.flatnonzero(there).tolist())
        once[rows] = weights_gather_seconds(links, groups, sizes[:, rows])
    return np.split(once, np.cumsum([len(line.kinds) for line, _, _ in replicas])[:-1])


def _least_in_a_domain(table: Table, replicas: Replicas, kinds: Ints, shared: Bools, outermost: bool) -> Ints:
    """Return how many ranks the domain with fewest of them has, among those with holders of a stage's layers, [S].
    Units are given out as plans do (`plans.placement`)."""
    used = np.zeros(table.types, dtype=np.int64)
    first, stride, number = [], [], []
    for line, count, _ in replicas:
        own = np.bincount(line.kinds, minlength=table.types)
        before = np.array([line.kinds[:place].count(kind) for place, kind in enumerate(line.kinds)])
        here = np.array(line.kinds)
        first.append(used[here] + (1 if outermost else count) * before)
        stride.append(own[here] if outermost else np.ones_like(here))
        number.append(np.full(len(here), count))
        used += count * own
    starts, strides, counts = np.concatenate(first), np.concatenate(stride), np.concatenate(number)
    owner = np.repeat(np.arange(len(kinds)), counts)
    copy = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    domain = (starts[owner] + strides[owner] * copy) // table.local[kinds[owner]]
    _, which = np.unique(kinds[owner] * (domain.max() + 1) + domain, return_inverse=True)
    width = int(which.max()) + 1
    ranks = np.bincount(owner * width + which, minlength=len(kinds) * width).reshape(len(kinds), width)
    there = shared @ ranks
    return np.asarray(np.where(there > 0, there, len(owner)).min(axis=1))


def shares(copies: Sequence[int], first: Sequence[int], total: int, seconds: TimeOf) -> list[tuple[int, int, int]]:
    """Return (kind, count, micro_batches) for `copies` replicas of each kind that take `total` together.

    Starts from `first` micro-batches each, all of them at most, gives to the replica that would end first and takes
    from the one that ends last. A kind falls in two groups where its replicas differ by one.
    """
    counts: dict[tuple[int, int], int] = {}
    for kind, (count, most) in enumerate(zip(copies, first, strict=True)):
        size = min(most, total)
        counts[(kind, size)] = counts.get((kind, size), 0) + count
    given = sum(count * size for (_, size), count in counts.items())
    while given < total:
        kind, size = min(counts, key=lambda key: (seconds(key[0], key[1] + 1), key))
        step = min(counts[(kind, size)], total - given)
        _move(counts, (kind, size), (kind, size + 1), step)
        given += step
    while given > total:
        kind, size = max(counts, key=lambda key: (key[1] > 1, seconds(*key), key))
        step = min(counts[(kind, size)], given - total)
        _move(counts, (kind, size), (kind, size - 1), step)
        given -= step
    for _ in range(4 * len(counts) + sum(copies)):
        last = max((key for key in counts if key[1] > 1), key=lambda key: (seconds(*key), key), default=None)
        if last is None:
            break
        others = [key for key in counts if key != last or counts[key] > 1]
        if not others:
            break
        target = min(others, key=lambda key: (seconds(key[0], key[1] + 1), key))
        if seconds(target[0], target[1] + 1) >= seconds(*last) * (1.0 - 1e-12):
            break
        step = 1 if target == last else min(counts[last], counts[target])
        _move(counts, last, (last[0], last[1] - 1), step)
        _move(counts, target, (target[0], target[1] + 1), step)
    return [
        (kind, count, size)
        for (kind, size), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[0][1]))
    ]


def _move(counts: dict[tuple[int, int], int], here: tuple[int, int], there: tuple[int, int], number: int) -> None:
    counts[here] -= number
    if not counts[here]:
        del counts[here]
    counts[there] = counts.get(there, 0) + number
