"""All pipelines of a composition that take a number of micro-batches: every order of its types and every split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from tests.search.mixed.oracle_tails import Paces

from shardwright.cost.context import Context
from shardwright.cost.iteration.step import norm_seconds, tied_embedding_seconds
from shardwright.cost.strategies import BLOCK, DATA_OUTERMOST, NONE, PIPELINE_OUTERMOST, SELECTIVE, Strategies
from shardwright.search.mixed.drafts.split_times import SplitTimes, pipeline_seconds, stages, tails, update_seconds
from shardwright.search.mixed.drafts.splits import Line
from shardwright.search.mixed.tables.columns import Table
from shardwright.search.mixed.tables.settings import Setting, rows_of

MODES = (NONE, SELECTIVE, BLOCK)
RANK_ORDERS = (PIPELINE_OUTERMOST, DATA_OUTERMOST)
Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """N pipelines of P stages: seconds of all micro-batches through them with the fastest messages that there can be,
    of a tied embedding by rank order [N, 2], of the optimizer step and of the norm; by rank order, the least of all
    before the optimizer step in a plan of so many replicas, whatever the others are, [N, 2]."""

    kinds: np.ndarray
    starts: np.ndarray
    found: SplitTimes
    pipeline: np.ndarray
    tied: np.ndarray
    update: np.ndarray
    norm: np.ndarray
    busy: np.ndarray

    def line(self, row: int) -> Line:
        return line_of(self.kinds[row], self.starts[row], self.found, row)

    def take(self, rows: np.ndarray) -> Lines:
        parts = {name: getattr(self, name)[rows] for name in self.__dataclass_fields__ if name != "found"}
        return Lines(found=self.found.take(rows), **parts)

    @property
    def least(self) -> np.ndarray:
        """The least of each part, [4]: busy seconds by rank order, optimizer, norm."""
        return np.array([*self.busy.min(axis=0), self.update.min(), self.norm.min()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """One setting and all that its pipelines need."""

    contexts: Sequence[Context]
    setting: Setting
    table: Table
    paces: Paces
    modes: tuple[int, ...] = MODES

    @property
    def total(self) -> int:
        return self.contexts[0].job.global_batch // self.setting.micro_batch


def compositions(table: Table, left: int) -> Iterator[Counts]:
    """Yield the units of each type of a replica that leaves `left` units or more to others."""
    for counts in itertools.product(*(range(int(units) + 1) for units in table.units)):
        if 0 < sum(counts) <= min(table.layers, int(table.units.sum()) - left):
            yield counts


def lines(shop: Shop, counts: Counts, micro_batches: int, copies: int, limit: float) -> Lines | None:
    """Return all pipelines that may be part of a plan of `copies` replicas faster than `limit`, None if there are
    none. Fewer layers recomputed are never slower, so each stage has its fastest recomputation that fits."""
    parts = []
    for order in itertools.permutations([kind for kind, count in enumerate(counts) if count]):
        kinds = np.repeat(np.array(order), [counts[kind] for kind in order])
        part = _of_order(shop, kinds, micro_batches, copies, limit)
        if part is not None:
            parts.append(part)
    if not parts:
        return None
    whole = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Lines.__dataclass_fields__
        if name != "found"
    }
    found = {
        name: np.concatenate([getattr(part.found, name) for part in parts]) for name in SplitTimes.__dataclass_fields__
    }
    return Lines(found=SplitTimes(**found), **whole)


def _of_order(shop: Shop, kinds: np.ndarray, micro_batches: int, copies: int, limit: float) -> Lines | None:
    table, starts = shop.table, splits(shop.table.layers, len(kinds))
    found = stages(table, kinds, starts, micro_batches=micro_batches, copies=copies, modes=shop.modes)
    update = update_seconds(table, kinds, found, copies).max(axis=1)
    tied, norm = _once_an_iteration(shop, kinds, copies)
    row = np.broadcast_to(kinds, found.forward.shape)
    own = (row[:, :, None] == np.arange(table.types)).astype(np.int64)
    once = shop.paces.once(row, starts, own, table.units, copies - 1)
    reduce, gather = tails(table, found, once)
    after = reduce.max(axis=1) + gather.max(axis=1)
    # A stage does its own work for every micro-batch, and each micro-batch passes all stages.
    work = found.forward + found.backward
    quick = np.maximum(micro_batches * work.max(axis=1), work.sum(axis=1))
    rows = np.flatnonzero(found.fits & (quick + after + tied.min() + update + norm < limit))
    if not len(rows):
        return None
    found = found.take(rows)
    pipeline = pipeline_seconds(found, _least_moves(table, kinds), micro_batches)
    made = Lines(
        kinds=row[rows],
        starts=starts[rows],
        found=found,
        pipeline=pipeline,
        tied=np.tile(tied, (len(rows), 1)),
        update=update[rows],
        norm=np.full(len(rows), norm),
        busy=(pipeline + after[rows])[:, None] + tied,
    )
    kept = np.flatnonzero(made.busy.min(axis=1) + made.update + made.norm < limit)
    return made.take(kept) if len(kept) else None


def line_of(kinds: np.ndarray, starts: np.ndarray, found: SplitTimes, row: int) -> Line:
    """Return a row of stages as the search writes it."""
    recompute = zip(found.recompute[row].tolist(), found.recompute_layers[row].tolist(), strict=True)
    return Line(
        kinds=tuple(kinds.tolist()),
        starts=tuple(starts.tolist()),
        recompute=tuple(recompute),
        seconds=0.0,
        after=0.0,
    )


@lru_cache
def splits(layers: int, depth: int) -> np.ndarray:
    """Return where the stages of all splits start, [N, P + 1]."""
    cuts = itertools.combinations(range(1, layers), depth - 1)
    return np.array([[0, *each, layers] for each in cuts], dtype=np.int64)


def _least_moves(table: Table, kinds: np.ndarray) -> np.ndarray:
    """Return the least seconds of a message between neighbours: two units of a type may be in one machine if one has
    room for two, those of different types never are."""
    near = np.where(table.local > 1, np.minimum(table.near, table.far), table.far)
    here, there = kinds[:-1], kinds[1:]
    return np.where(here == there, near[here], np.maximum(table.far[here], table.far[there]))


def _once_an_iteration(shop: Shop, kinds: np.ndarray, copies: int) -> tuple[np.ndarray, float]:
    """Return the seconds of a tied embedding under both rank orders, [2], and of the norm."""
    used, model = sorted(set(kinds.tolist())), shop.contexts[0].model
    first, last = int(kinds[0]), int(kinds[-1])
    rows = {kind: rows_of([shop.setting.on(kind)], model, stages=len(kinds), copies=copies) for kind in used}
    tied = [
        max(
            float(tied_embedding_seconds(shop.contexts[kind], _ordered(rows[kind], order), apart=first != last)[0])
            for kind in (first, last)
        )
        for order in RANK_ORDERS
    ]
    return np.array(tied), max(float(norm_seconds(shop.contexts[kind], rows[kind])[0]) for kind in used)


def _ordered(rows: Strategies, order: int) -> Strategies:
    return replace(rows, rank_order=np.array([order]))
