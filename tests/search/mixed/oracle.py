"""The best mixed plan of a small cluster by enumeration: all compositions, orders, splits, recomputations and shares.

A plan takes at least its slowest pipeline, so only choices whose pipelines are all faster than the best plan so far are
costed, each with `mixed_iteration`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.lanes import Known
from shardwright.cost.strategy import BLOCK, NONE, SELECTIVE
from shardwright.plan.check import check
from shardwright.search.mixed.costing import fitting_seconds
from shardwright.search.mixed.draft import Draft, plan_of
from shardwright.search.mixed.model_tables import tables
from shardwright.search.mixed.search import ORDERS
from shardwright.search.mixed.settings import Setting
from shardwright.search.mixed.splits import Line, moves_of
from shardwright.search.mixed.stages import pipeline_seconds, stages
from shardwright.search.mixed.tables import Table
from shardwright.spec.cluster import Cluster

MODES = (NONE, SELECTIVE, BLOCK)


class TooManyError(Exception):
    """The enumeration would take too long."""


@dataclass(frozen=True)
class Best:
    seconds: float
    plan: object
    costed: int


def brute_force(contexts: Sequence[Context], cluster: Cluster, settings: Sequence[Setting], most: int) -> Best | None:
    """Return the best plan, or None where none fits. Raises TooManyError beyond `most` plans costed."""
    best: Best | None = None
    costed = 0
    known: Known = {}
    for setting, table in zip(settings, tables(contexts, settings), strict=True):
        total = contexts[0].job.global_batch // setting.micro_batch
        for copies in range(1, min(int(table.units.sum()), total) + 1):
            lines = {c: list(all_lines(table, c, total, copies)) for c in all_compositions(table)}
            lines = {c: found for c, found in lines.items() if found}
            least = {
                (c, m): min((line[1][m] for line in found), default=np.inf)
                for c, found in lines.items()
                for m in range(1, total + 1)
            }
            choices = []
            for chosen in multisets(list(lines), table.units, copies):
                for shares in all_shares(chosen, total):
                    bound = max(least[c, m] for c, m in zip(chosen, shares, strict=True))
                    if np.isfinite(bound):
                        choices.append((bound, chosen, shares))
            choices.sort(key=lambda choice: (choice[0], str(choice[1:])))
            for bound, chosen, shares in choices:
                if best is not None and bound >= best.seconds:
                    break
                limit = best.seconds if best else np.inf
                each = [[line for line in lines[c] if line[1][m] < limit] for c, m in zip(chosen, shares, strict=True)]
                for picked in itertools.product(*each):
                    costed += 1
                    if costed > most:
                        raise TooManyError
                    found = cost(contexts, cluster, setting, [line[0] for line in picked], shares, known)
                    if found is not None and (best is None or found[0] < best.seconds):
                        best = Best(found[0], found[1], costed)
    return best


def all_compositions(table: Table) -> Iterator[tuple[int, ...]]:
    for counts in itertools.product(*(range(int(units) + 1) for units in table.units)):
        if 0 < sum(counts) <= table.layers:
            yield counts


def all_lines(
    table: Table, counts: tuple[int, ...], total: int, copies: int
) -> Iterator[tuple[Line, dict[int, float]]]:
    """Yield every order and split, with the seconds for each number of micro-batches (infinite where it does not fit).
    Fewer layers recomputed are never slower, so each stage has its fastest recomputation that fits."""
    depth = sum(counts)
    present = [kind for kind, count in enumerate(counts) if count]
    for order in itertools.permutations(present):
        kinds = np.repeat(np.array(order), [counts[kind] for kind in order])
        for cuts in itertools.combinations(range(1, table.layers), depth - 1):
            starts = np.array([[0, *cuts, table.layers]])
            seconds: dict[int, float] = {}
            line = None
            for m in range(1, total + 1):
                found = stages(table, kinds, starts, micro_batches=m, copies=copies, modes=MODES)
                fit = bool(found.fits[0])
                seconds[m] = float(pipeline_seconds(found, moves_of(table, kinds), m)[0]) if fit else np.inf
                # Transfers depend on where units stand: at best all are in one machine.
                if fit:
                    moves = np.minimum(table.near, table.far)[kinds[:-1]]
                    seconds[m] = min(seconds[m], float(pipeline_seconds(found, moves, m)[0]))
                    recompute = zip(found.recompute[0].tolist(), found.recompute_layers[0].tolist(), strict=True)
                    line = Line(
                        kinds=tuple(kinds.tolist()),
                        starts=tuple(starts[0].tolist()),
                        recompute=tuple(recompute),
                        seconds=0.0,
                        after=0.0,
                    )
            if line is not None:
                yield line, seconds


def multisets(items: list[tuple[int, ...]], units: np.ndarray, size: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    for chosen in itertools.combinations_with_replacement(items, size):
        if (np.array(chosen).sum(axis=0) <= units).all():
            yield chosen


def all_shares(chosen: Sequence[tuple[int, ...]], total: int) -> Iterator[tuple[int, ...]]:
    """Yield the micro-batches of each replica; equal replicas in falling order."""
    for cuts in itertools.combinations(range(1, total), len(chosen) - 1):
        ends = (0, *cuts, total)
        shares = tuple(b - a for a, b in itertools.pairwise(ends))
        if all(a != b or m >= n for (a, m), (b, n) in itertools.pairwise(zip(chosen, shares, strict=True))):
            yield shares


def cost(contexts, cluster, setting, lines, shares, known):
    """Return seconds and plan, under the better rank order, or None where it does not fit."""
    best = None
    table_of = [(line, 1, m) for line, m in zip(lines, shares, strict=True)]
    groups = [(key, len(list(group))) for key, group in itertools.groupby(sorted(table_of, key=str))]
    replicas = tuple((line, count, m) for (line, _, m), count in groups)
    draft = Draft(setting=setting, replicas=replicas, seconds=0.0)
    for order in ORDERS:
        plan = plan_of(contexts, cluster, draft, rank_order=order)
        if check(plan):
            continue
        seconds = fitting_seconds(contexts, plan, known)
        if seconds is not None and (best is None or seconds < best[0]):
            best = (seconds, plan)
    return best
