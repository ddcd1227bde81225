"""The uniform search: one pool of equal machines, every strategy alike on all replicas. Exact under the cost model.

Best first, in three rounds of growing cost. A layout is bounded by its work; an arrangement (placement, switches,
split) by its pipeline without recomputation; a complete strategy by the closed-form pipeline bound. Whatever a bound
says cannot beat the plans already found is dropped unseen; the rest is simulated. Of rows that are as good but for a
little, the one with the fewest rare switches comes first; the least value is found, too, so that it is known what that
costs.

This is branch and bound as in `mixed.branch_and_bound.tree`, with the same order and the same cutoff, but a node there
is worth a linear program and here less than a microsecond: so the loops go over batches of rows, never over candidates.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, fields, replace

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.context import Context, ShardIndex, shard_index
from shardwright.cost.iteration.batch import Verdict, bound_seconds, iteration, simulated_seconds
from shardwright.cost.strategies import Layouts, Strategies
from shardwright.plans.findings import Cause, Rejection, ordered
from shardwright.progress import stopped, tell, tell_best
from shardwright.records import record
from shardwright.search.objective import INDIFFERENCE, Objective
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, within
from shardwright.search.space.expand import Axes, ExpandedRows, arrangements, axes, layer_variants
from shardwright.search.space.layouts import Splits, candidate_counts, layouts, recompute_counts, splits
from shardwright.search.uniform.best import Best, Entry, Waiting
from shardwright.search.uniform.bounds import distinct_shards, layout_bounds, memory_floor, sketch_seconds
from shardwright.search.uniform.completion import completed, starts_of, worth_splitting

LAYOUT_BATCH, EARLY_BATCH, ARRANGEMENT_BATCH, LARGEST_BATCH, SIMULATION_BATCH = 384, 32, 48, 384, 16
FEW = 3  # plans wanted, for which batches have these sizes; for more they are larger


@dataclass(slots=True)
class Tally:
    """How many candidates each reason dropped, and how many were costed."""

    dropped: dict[Rejection, float]
    costed: int = 0

    def drop(self, reason: Rejection | Cause, count: float) -> None:
        if count:
            reason = reason if isinstance(reason, Rejection) else Rejection(reason)
            self.dropped[reason] = self.dropped.get(reason, 0.0) + float(count)


@record
class UniformResult:
    """What the search of one pool returns: rows with value, best first (`objective.preference`); the row of least value
    whatever its rare switches; the least value that rows may have which a stopped search left `unseen` (infinite: there
    are none); all that may be among the best, by value; and the account of the rest."""

    ranked: tuple[tuple[float, Strategies], ...]
    least: tuple[float, Strategies] | None
    unseen: float
    in_question: tuple[Entry, ...]
    candidates: int
    costed: int
    rejected: tuple[tuple[Rejection, int], ...]
    phases: tuple[tuple[str, float], ...]


@record(kw_only=False)
class _Search:
    context: Context
    how: Axes
    filters: Filters
    objective: Objective
    choices: Splits
    index: ShardIndex
    best: Best
    tally: Tally

    def batch(self, size: int) -> int:
        """Return how many rows to look at in one go: of many that are wanted, many may as well be costed together."""
        return size * max(self.best.limit // FEW, 1)


def search(
    context: Context,
    space: Space,
    filters: Filters,
    objective: Objective,
    *,
    top: int,
    start: Verdict | None = None,
    indifference: float = INDIFFERENCE,
) -> UniformResult:
    """Return the best strategies of `top` different layouts, where values up to `indifference` above the least are as
    good. `start` is what is known of some rows of the space: the better they are, the more the bounds drop."""
    clock = [("start", time.perf_counter())]
    rows = layouts(context, space)
    choices, apart = splits(context, space, rows.pp * rows.vpp), axes(space, filters.axes).tells_orders_apart
    counts = candidate_counts(context, space, rows, choices, orders_apart=apart)
    candidates = counts.sum()
    tally = Tally(dropped={})
    for reason, narrower in filters.narrowings(context, space):
        fewer = candidate_counts(context, narrower, rows, choices, orders_apart=apart)
        tally.drop(reason, (counts - fewer).sum())
        space, counts = narrower, fewer
    # Rows as good are told apart by what is rare: of a rare overlap the row without it counts too.
    how = axes(space, filters.axes | {switch.axis for switch in context.rare_switches})
    rows, counts = _kept(rows, counts, counts > 0)
    for reason, mask in filters.layout_masks(context, rows):
        tally.drop(reason, counts[mask].sum())
        rows, counts = _kept(rows, counts, ~mask)
    clock.append(("enumerate", time.perf_counter()))
    index = shard_index(context, layer_variants(context, how, distinct_shards(rows))[0])
    clock.append(("layers", time.perf_counter()))
    fitting = memory_floor(context, how, rows, index) <= context.memory_limit_bytes
    tally.drop(Cause.MEMORY, counts[~fitting].sum())
    rows, counts = _kept(rows, counts, fitting)
    bounds = layout_bounds(context, how, rows, index)
    allowed = bounds <= objective.limits(rows.gpus)
    tally.drop(Cause.LIMITS, counts[~allowed].sum())
    rows, counts = _kept(rows, counts, allowed)
    values = objective.values(bounds[allowed], rows.gpus)
    clock.append(("bound", time.perf_counter()))
    best = Best(top, indifference, context.rare_switches)
    run = _Search(context, how, filters, objective, choices, index, best, tally)
    _begin(run, rows, start)
    unseen = _best_first(run, rows, values, counts)
    clock.append(("refine", time.perf_counter()))
    return UniformResult(
        ranked=tuple((entry.value, entry.row) for entry in best.ranked()),
        least=None if best.least is None else (best.least.value, best.least.row),
        unseen=unseen,
        in_question=tuple(best.in_question()),
        candidates=int(candidates),
        costed=tally.costed,
        rejected=_account(tally, candidates),
        phases=tuple((name, end - begin) for (_, begin), (name, end) in itertools.pairwise(clock)),
    )


def _kept(rows: Layouts, counts: Floats, mask: Bools) -> tuple[Layouts, Floats]:
    return rows.take(mask), counts[mask]


def _account(tally: Tally, candidates: float) -> tuple[tuple[Rejection, int], ...]:
    """Return the counts by reason, largest first. What no filter met is dominated: a twin of a costed candidate that
    only adds recomputation or gives up overlap."""
    reasons = {reason: int(count) for reason, count in tally.dropped.items() if count}
    rest = int(candidates) - sum(reasons.values()) - tally.costed
    if rest > 0:
        reasons[Rejection(Cause.DOMINATED)] = rest
    return ordered(reasons)


def _begin(run: _Search, rows: Layouts, start: Verdict | None) -> None:
    """Offer what is known of rows that belong to one of the layouts."""
    if start is None or not len(rows):
        return
    layout = np.array([_place(rows, start.rows, row) for row in range(len(start.rows))])
    allowed = start.fits & (start.seconds <= run.objective.limits(start.rows.gpus)) & (layout >= 0)
    allowed &= ~run.filters.mask(run.context, start.rows) & within(run.how.space, start.rows)
    good = np.flatnonzero(allowed)
    values = run.objective.values(start.seconds, start.rows.gpus)
    run.best.offer(layout[good], values[good], start.rows.take(good))


def _place(rows: Layouts, start: Strategies, row: int) -> int:
    same = np.ones(len(rows), dtype=bool)
    for field in fields(rows):
        same &= getattr(rows, field.name) == getattr(start, field.name)[row]
    places = np.flatnonzero(same)
    return int(places[0]) if len(places) else -1


def _best_first(run: _Search, rows: Layouts, values: Floats, counts: Floats) -> float:
    """Expand layouts and complete arrangements in the order of their bounds, until no bound beats the best or, once
    there is a plan, whoever asks has had enough. Return the least bound that is left then.

    A few arrangements are completed out of turn, right after the first layouts are expanded: what they reach lets the
    bounds drop most of the rest unseen. Where a batch is no better than the best, hardly any of the rest will be: the
    next one is twice as large.
    """
    order = np.argsort(values, kind="stable")
    position, best, size = 0, run.best, run.batch(ARRANGEMENT_BATCH)
    waiting = Waiting()
    while True:
        unseen = float(values[order[position]]) if position < len(order) else np.inf
        left = min(unseen, waiting.lowest)
        if best.least is not None:
            tell_best(best.least.value)
            if stopped() and left <= best.threshold:
                break
        if waiting.lowest <= min(best.threshold, unseen) and waiting.lowest < np.inf:
            before = best.threshold
            _complete(run, waiting.pop(min(unseen, before), size))
            size = min(2 * size, run.batch(LARGEST_BATCH)) if best.threshold == before else run.batch(ARRANGEMENT_BATCH)
        elif unseen <= best.threshold and unseen < np.inf:
            batch = order[position : position + LAYOUT_BATCH]
            position += LAYOUT_BATCH
            tell(position / len(order))
            promising = values[batch] <= best.threshold
            run.tally.drop(Cause.BOUND, counts[batch[~promising]].sum())
            batch = batch[promising]
            waiting.push(*_sketched(run, rows, batch))
            if position <= LAYOUT_BATCH and waiting.lowest < best.threshold:
                _complete(run, waiting.pop(best.threshold, EARLY_BATCH))
        else:
            left = np.inf
            break
    reason = Cause.BOUND if left == np.inf else Cause.NOT_LOOKED_AT
    run.tally.drop(reason, counts[order[position:]].sum())
    rest = waiting.rest()
    run.tally.drop(reason, _completions_per_row(run, rest).sum() if rest else 0)
    return left


def _sketched(run: _Search, rows: Layouts, batch: Ints) -> tuple[ExpandedRows, Floats]:
    """Return the arrangements of the layouts in `batch` that may beat the best, with the bounds of their values."""
    taken = rows.take(batch)
    promising = worth_splitting(
        run.context,
        run.index,
        taken,
        lambda seconds, variants, _: run.objective.values(seconds, variants.gpus) <= run.best.threshold,
    )
    arranged = arrangements(run.context, run.how, taken, run.choices, promising)
    arranged = replace(arranged, layout=batch[arranged.layout])
    bounds = sketch_seconds(run.context, arranged.strategies, run.index.of(arranged.strategies))
    gpus = arranged.strategies.gpus
    values = run.objective.values(bounds, gpus)
    late = bounds > run.objective.limits(gpus)
    slow = ~late & (values > run.best.threshold)
    completions = _completions_per_row(run, arranged)
    run.tally.drop(Cause.LIMITS, completions[late].sum())
    run.tally.drop(Cause.BOUND, completions[slow].sum())
    keep = np.flatnonzero(~late & ~slow)
    return arranged.take(keep), values[keep]


def _completions_per_row(run: _Search, rows: ExpandedRows) -> Floats:
    """Return how many candidates an arrangement stands for, at least: its recomputation settings."""
    return recompute_counts(run.context, run.how.space, run.choices.longest[rows.split]).astype(float)


def _complete(run: _Search, arranged: ExpandedRows) -> None:
    """Cost every completion of `arranged` that may be better than what is known."""
    parts: list[tuple[ExpandedRows, Floats]] = []
    for full, lost in completed(run.context, run.how, run.index, arranged):
        run.tally.drop(Cause.MEMORY, lost.sum())
        for reason, mask in run.filters.masks(run.context, full.strategies):
            run.tally.drop(reason, mask.sum())
            full = full.take(~mask)
        if len(full.layout):
            parts.append((full, _bounds(run, full)))
    if parts:
        bounds = np.concatenate([bound for _, bound in parts])
        _settle(run, ExpandedRows.concatenated([rows for rows, _ in parts]), bounds)


def _bounds(run: _Search, rows: ExpandedRows) -> Floats:
    """Return lower bounds of complete rows of one pipeline shape."""
    part = rows.strategies
    parts = iteration(run.context, part, run.index.of(part), starts_of(run.context, part))
    return bound_seconds(run.context, part, parts)


def _settle(run: _Search, rows: ExpandedRows, bounds: Floats) -> None:
    """Simulate the rows, best bound first, until the bound says that the rest is no better."""
    gpus = rows.strategies.gpus
    limits = run.objective.limits(gpus)
    values = np.where(bounds <= limits, run.objective.values(bounds, gpus), np.inf)
    run.tally.drop(Cause.LIMITS, int((~np.isfinite(values)).sum()))
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])]
    run.tally.costed += len(order)
    position, size = 0, run.batch(SIMULATION_BATCH)
    while position < len(order) and values[order[position]] <= (threshold := run.best.threshold):
        chosen = order[position : position + size]
        position += size
        chosen = chosen[values[chosen] <= threshold]
        simulated = rows.strategies.take(chosen)
        seconds = simulated_seconds(run.context, simulated, run.index)
        good = np.flatnonzero(seconds <= limits[chosen])
        exact = run.objective.values(seconds, gpus[chosen])
        run.best.offer(rows.layout[chosen][good], exact[good], simulated.take(good))
