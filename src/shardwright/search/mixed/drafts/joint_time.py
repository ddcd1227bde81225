"""What replicas that are unlike take together: each stage shares its layers with all stages that hold some of them, at
the pace of the slowest links among these, on as many ranks of a machine as the least of them has. Close to the exact
iteration, which knows every machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.network.collectives import Group, gather_seconds
from shardwright.rounding import coarse
from shardwright.search.mixed.drafts.split_times import SplitTimes, tails, update_seconds
from shardwright.search.mixed.drafts.splits import Line
from shardwright.search.mixed.tables.columns import Table

Replicas = Sequence[tuple[Line, int, int]]  # line, count, micro-batches


def seconds_together(table: Table, replicas: Replicas, found: Sequence[SplitTimes]) -> tuple[float, list[float]]:
    """Return the seconds of an iteration of replicas with the stages `found`, and of them what each replica takes after
    its pipeline, under the better rank order: the copies of a stage next to each other, or the stages of a copy."""
    copies = sum(count for _, count, _ in replicas)
    update, norm = 0.0, 0.0
    for (line, _, _), each in zip(replicas, found, strict=True):
        kinds = np.array(line.kinds)
        update = max(update, float(update_seconds(table, kinds, each, copies)[0].max()))
        norm = max(norm, float(table.norm_seconds(len(kinds) * copies)[0, kinds].max()))
    orders = (False, True) if copies > 1 else (False,)
    after = [_after(table, replicas, found, copies, outermost) for outermost in orders]
    busy = [max(line.seconds + late for (line, _, _), late in zip(replicas, each, strict=True)) for each in after]
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


def _after(table: Table, replicas: Replicas, found: Sequence[SplitTimes], copies: int, outermost: bool) -> list[float]:
    """Return the seconds that each replica cannot hide in its pipeline."""
    after = []
    once = _once(table, replicas, [each.parameters[0] for each in found], copies, outermost)
    for (line, _, _), each, seconds in zip(replicas, found, once, strict=True):
        reduce, gather = tails(table, each, seconds[None, :])
        tied = float(table.tied_between(np.array(line.kinds), len(line.kinds), 1 if outermost else copies))
        after.append(float(reduce.max()) + float(gather.max()) + tied)
    return after


def _once(table: Table, replicas: Replicas, parameters: Sequence[Floats], copies: int, outermost: bool) -> list[Floats]:
    """Return the seconds to gather a byte of each parameter of every stage, [P] for each replica."""
    if copies < 2:
        return [np.zeros(len(line.kinds)) for line, _, _ in replicas]
    begin = np.concatenate([line.starts[:-1] for line, _, _ in replicas])
    end = np.concatenate([line.starts[1:] for line, _, _ in replicas])
    kinds = np.concatenate([line.kinds for line, _, _ in replicas])
    number = np.concatenate([np.full(len(line.kinds), count) for line, count, _ in replicas])
    sizes = np.concatenate(parameters)
    shared = (begin[:, None] < end[None, :]) & (begin[None, :] < end[:, None])
    held = (shared * number) @ (kinds[:, None] == np.arange(table.types))
    local = _least_in_a_domain(table, replicas, kinds, shared, outermost)
    once = np.zeros(len(kinds))
    for kind, *there in sorted(set(zip(kinds.tolist(), *(held > 0).T.tolist(), strict=True))):
        rows = (kinds == kind) & ((held > 0) == there).all(axis=1)
        groups = Group(size=held[rows].sum(axis=1), local=local[rows])
        once[rows] = gather_seconds(table.links_seen(kind, np.flatnonzero(there).tolist()), groups, sizes[rows])
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
