"""The search over numbers of machines of one type, all at once.

Every layout on up to all machines is in one table; the fewest machines that hold it are its count. A count on an offer
is a ray from the origin in hours, dollars and preemptions, along which the seconds of an iteration say how far out a
plan lies. The front cuts each ray where one of its points is as good; whatever a lower bound puts beyond the cut of its
count is dropped unseen. Layouts are bounded by their work, arrangements by the sketch of their pipeline, and what is
left is simulated, the most promising first, so that the front cuts the rest ever shorter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Floats, Ints, distinct
from shardwright.cost.context import Context, LayerRows, ShardIndex, shard_index
from shardwright.cost.iteration.batch import bound_seconds, exact_seconds, iteration
from shardwright.cost.layers.table import LayerTable
from shardwright.cost.strategies import Layouts, Strategies
from shardwright.cost.trust.rarity import rare_counts
from shardwright.progress import tell
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.market.result import Front
from shardwright.search.renting import Tariff
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, searched
from shardwright.search.space.expand import Axes, ExpandedRows, arrangements, axes, layer_variants
from shardwright.search.space.layouts import Splits, layouts, splits
from shardwright.search.uniform.bounds import distinct_shards, layout_bounds, memory_floor, sketch_seconds
from shardwright.search.uniform.completion import completed, shapes, starts_of, worth_splitting

LAYOUT_BATCH, ARRANGEMENT_BATCH, SIMULATION_BATCH = 2048, 256, 16  # rows at a time
PROBES, PROBE_LAYOUTS, PROBE_ROWS = 6, 64, 12  # numbers of machines looked at first, and what is tried of each


@record
class Find:
    """A plan on the front: a strategy on so many machines of an offer, and what its seconds weigh."""

    lot: int
    tariff: Tariff
    machines: int
    seconds: float
    row: Strategies


@dataclass(slots=True, kw_only=True)
class Sweep:
    """One type of machine: what its layouts are, what bounds say of each, and what it costs on each offer."""

    lot: int
    context: Context
    filters: Filters
    how: Axes
    tariffs: Sequence[Tariff]
    rows: Layouts
    counts: Ints
    bounds: Floats
    choices: Splits
    index: ShardIndex
    strains: Floats
    indifference: float
    open: Ints
    candidates: int
    costed: int = 0


def sweep(
    lot: int, context: Context, space: Space, filters: Filters, tariffs: Sequence[Tariff], indifference: float
) -> Sweep:
    """Return the layouts on up to all machines of `context`, with bounds. Layer times are those of undisturbed
    machines: `strains` [machines + 1] is by what waiting for the slowest of more machines lengthens them."""
    space, pool = searched(context, space), context.pool
    how = axes(space, filters.axes | {switch.axis for switch in context.rare_switches})
    rows = layouts(context, space)
    candidates = len(rows)
    for _, mask in filters.layout_masks(context, rows):
        rows = rows.take(~mask)
    choices = splits(context, space, rows.pp * rows.vpp)
    straggling = shard_index(context, layer_variants(context, how, distinct_shards(rows))[0])
    every = np.arange(len(straggling.codes))
    index = replace(straggling, table=lengthened(straggling.table, every, np.full(len(every), 1.0 / context.strain)))
    rows = rows.take(memory_floor(context, how, rows, index) <= context.memory_limit_bytes)
    counts = -(-rows.gpus // pool.gpus_per_node)
    strains = np.array([replace(context, pool=replace(pool, nodes=n)).strain for n in range(pool.nodes + 1)])
    bounds = coarse(layout_bounds(context, how, rows, index) * strains[counts])
    return Sweep(
        lot=lot,
        context=context,
        filters=filters,
        how=how,
        tariffs=tariffs,
        rows=rows,
        counts=counts,
        bounds=bounds,
        choices=choices,
        index=index,
        strains=strains,
        indifference=indifference,
        open=np.arange(len(rows)),
        candidates=candidates,
    )


def probe(run: Sweep, front: Front[Find]) -> None:
    """Settle a few promising layouts on halved and halved again numbers of machines, for a front to cut with."""
    seconds = run.bounds * run.counts
    chosen = []
    for step in range(PROBES):
        here = np.flatnonzero(run.counts == max(len(run.strains) - 1 >> step, 1))
        chosen.append(here[np.argsort(seconds[here], kind="stable")[:PROBE_LAYOUTS]])
    batch = distinct(np.concatenate(chosen))
    rows, ratios = _arranged(run, front, batch)
    if not len(ratios):
        return
    order = np.argsort(ratios, kind="stable")
    counts = run.counts[rows.layout[order]]
    first = np.concatenate([order[counts == count][:PROBE_ROWS] for count in distinct(counts)])
    _settle(run, front, rows.take(first))


def least_dollars(run: Sweep) -> tuple[bool, float, int]:
    """Return what to sort sweeps by: safe and cheap machines first, whose plans leave the others least."""
    least = np.full(len(run.strains), np.inf)
    np.minimum.at(least, run.counts, run.bounds)
    cheapest = min(float((tariff.slopes[:, 1] * least[tariff.machines]).min()) for tariff in run.tariffs)
    return all(tariff.slopes[:, 2].any() for tariff in run.tariffs), cheapest, run.lot


def finish(run: Sweep, front: Front[Find]) -> None:
    """Settle everything that the front leaves a chance: after every batch of layouts a few of the best arrangements, in
    the end all that wait, in batches that double."""
    waiting: list[tuple[ExpandedRows, Floats]] = []
    ratios = _ratios(run.bounds, _cuts(run, front)[run.counts])
    order = np.argsort(ratios, kind="stable")
    order = order[: np.searchsorted(ratios[order], 1.0)]
    for start in range(0, len(order), LAYOUT_BATCH):
        tell(start / len(order))
        batch = order[start : start + LAYOUT_BATCH]
        batch = batch[run.bounds[batch] < _cuts(run, front)[run.counts[batch]]]
        if len(batch):
            waiting = _settle_best(run, front, [*waiting, _arranged(run, front, batch)], ARRANGEMENT_BATCH)
    size = ARRANGEMENT_BATCH
    while waiting:
        waiting = _settle_best(run, front, waiting, size)
        size *= 2


def _settle_best(
    run: Sweep, front: Front[Find], waiting: list[tuple[ExpandedRows, Floats]], size: int
) -> list[tuple[ExpandedRows, Floats]]:
    """Settle the `size` most promising of what waits, and return what is still of use of the rest."""
    rows = ExpandedRows.concatenated([rows for rows, _ in waiting])
    bounds = np.concatenate([bounds for _, bounds in waiting])
    ratios = _ratios(bounds, _cuts(run, front)[run.counts[rows.layout]])
    order = np.argsort(ratios, kind="stable")
    order = order[: np.searchsorted(ratios[order], 1.0)]
    if len(order):
        _settle(run, front, rows.take(order[:size]))
    rest = order[size:]
    return [(rows.take(rest), bounds[rest])] if len(rest) else []


def _cuts(run: Sweep, front: Front[Find]) -> Floats:
    """Return the seconds from which a plan is of no use, by number of machines, [machines + 1]."""
    cuts = np.zeros(len(run.strains))
    for tariff in run.tariffs:
        ends = np.asarray(np.isfinite(tariff.slopes).all(axis=1))  # a run may be interrupted too often to ever end
        cut = np.where(ends, front.cuts(np.where(ends[:, None], tariff.slopes, 1.0)), 0.0)
        np.maximum.at(cuts, tariff.machines, cut)
    return coarse(cuts)


def _ratios(bounds: Floats, cuts: Floats) -> Floats:
    """Return how near bounds are to the cuts of their counts, [N]: of no use from 1 on."""
    useful = (cuts > 0.0) & np.isfinite(bounds)
    return np.asarray(np.divide(bounds, cuts, out=np.full(len(bounds), np.inf), where=useful))


def _arranged(run: Sweep, front: Front[Find], batch: Ints) -> tuple[ExpandedRows, Floats]:
    """Return the arrangements of layouts that the front leaves a chance, and lower bounds of their seconds."""
    taken = run.rows.take(batch)
    cuts = _cuts(run, front)[run.counts[batch]]
    promising = worth_splitting(run.context, run.index, taken, lambda seconds, _, layout: seconds < cuts[layout])
    rows = arrangements(run.context, run.how, taken, run.choices, promising)
    bounds = coarse(sketch_seconds(run.context, rows.strategies, run.index.of(rows.strategies)))
    keep = np.flatnonzero(bounds < cuts[rows.layout])
    rows = rows.take(keep)
    return replace(rows, layout=batch[rows.layout]), bounds[keep]


def _settle(run: Sweep, front: Front[Find], rows: ExpandedRows) -> None:
    """Complete rows, and simulate the completions, best bound first, that the front leaves a chance."""
    parts: list[tuple[ExpandedRows, Floats]] = []
    for full, _ in completed(run.context, run.how, run.index, rows):
        for _, mask in run.filters.masks(run.context, full.strategies):
            full = full.take(np.flatnonzero(~mask))
        if len(full.layout):
            parts.append((full, _seconds(run, full, exact=False)))
    if not parts:
        return
    full, bounds = ExpandedRows.concatenated([rows for rows, _ in parts]), np.concatenate([bound for _, bound in parts])
    counts = run.counts[full.layout]
    while True:
        ratios = _ratios(bounds, _cuts(run, front)[counts])
        order = np.argsort(ratios, kind="stable")[:SIMULATION_BATCH]
        order = order[ratios[order] < 1.0]
        if not len(order):
            return
        run.costed += len(order)
        for group in shapes(full.take(order)):
            _offer(run, front, group, _seconds(run, group, exact=True))
        bounds[order] = np.inf


def _offer(run: Sweep, front: Front[Find], rows: ExpandedRows, seconds: Floats) -> None:
    """Offer exact plans to the front, on every offer that has the machines."""
    counts = run.counts[rows.layout]
    for place in np.argsort(seconds, kind="stable"):
        count, value = int(counts[place]), float(seconds[place])
        for tariff in run.tariffs:
            at = int(np.searchsorted(tariff.machines, count))
            if at < len(tariff.machines) and tariff.machines[at] == count:
                hours, dollars, taken = (value * tariff.slopes[at]).tolist()
                row = rows.strategies.take(np.array([place]))
                find = Find(lot=run.lot, tariff=tariff, machines=count, seconds=value, row=row)
                if math.isfinite(dollars):
                    front.offer((hours, dollars, taken), find)


def _seconds(run: Sweep, rows: ExpandedRows, *, exact: bool) -> Floats:
    """Return the iteration of rows of one shape on as many machines as each needs, or a lower bound of it, [N]. Rows
    with rare switches (`cost.trust.rarity`) weigh `indifference` more: the same plan comes first on some machines as
    where nothing else is offered."""
    given = rows.strategies
    shards = strained(run.index.of(given), run.strains[run.counts[rows.layout]])
    parts = iteration(run.context, given, shards, starts_of(run.context, given))
    seconds = (exact_seconds if exact else bound_seconds)(run.context, given, parts)
    return coarse(seconds * (1.0 + run.indifference * (rare_counts(given, run.context.rare_switches) > 0)))


def strained(shards: LayerRows, strain: Floats) -> LayerRows:
    """Return the rows of a layer table with times lengthened by `strain` [N], each distinct pair once."""
    levels, level = np.unique(strain, return_inverse=True)
    pairs, row = np.unique(shards.row * len(levels) + level, return_inverse=True)
    return LayerRows(table=lengthened(shards.table, pairs // len(levels), levels[pairs % len(levels)]), row=row)


def lengthened(table: LayerTable, rows: Ints, factor: Floats) -> LayerTable:
    """Return rows of a layer table with their times multiplied by `factor`, one for each row."""
    return table.take(rows).scaled(factor)
