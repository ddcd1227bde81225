"""The simplest plans that mix types: replicas of one type each, side by side, and replicas that are all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shardwright.arrays import Bools, Ints, distinct, distinct_rows
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.mixed.bounds.compositions import Compositions, columns, least_seconds, micro_batches
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.drafts.realise import Composition
from shardwright.search.mixed.heuristics.attempts import Drafter
from shardwright.search.mixed.subproblem.eligible import with_single_stages
from shardwright.search.mixed.tables.region import Region
from shardwright.search.space.axes import Space

SIDE_BY_SIDE_PLANS = 4  # plans that are made, of those of all settings
STEPS = 20  # of the bisection for how long one takes
EQUAL_PLANS = 3  # numbers of replicas that are made into plans


@record(kw_only=False)
class _Guess:
    """Compositions of one type each, and the seconds that they take at least."""

    seconds: float
    by: Drafter
    chosen: tuple[Composition, ...]


def side_by_side(
    drafters: Sequence[tuple[Drafter, Region]],
    space: Space,
    incumbent: Callable[[], float],
    offer: Callable[[Draft], float],
) -> None:
    """Offer the plans that look best, of the settings of all `drafters` in their regions: with pipelines of whatever
    depth, and with the shortest that hold the model."""
    guesses = [guess for by, region in drafters for guess in _guesses(by, region, space, incumbent())]
    guesses.sort(key=lambda guess: guess.seconds)
    for guess in guesses[:SIDE_BY_SIDE_PLANS]:
        if guess.seconds < incumbent():
            draft = guess.by.workshop.draft(guess.chosen, guess.by.instance.total)
            if draft is not None:
                offer(draft)


def _guesses(by: Drafter, region: Region, space: Space, longest: float) -> list[_Guess]:
    """Return what a setting can do within `longest` seconds."""
    instance = by.instance
    guesses = _pure(by, region, space, longest)
    made = []
    for rows in (np.arange(len(guesses.stages)), np.flatnonzero(_shallowest(guesses))):
        of = guesses.take(rows)
        copies = np.minimum(instance.table.units[of.counts.argmax(axis=1)] // of.stages, instance.total)
        seconds = _shortest(of, copies, instance.total, instance.quickest(region), longest)
        if seconds < longest:
            chosen = _best_of_each_type(of, copies, seconds)
            if region.fewest <= sum(number for _, number, _ in chosen) <= region.most:
                made.append(_Guess(seconds, by, chosen))
    return made[:1] if len(made) == 2 and made[0].chosen == made[1].chosen else made


def _pure(by: Drafter, region: Region, space: Space, longest: float) -> Compositions:
    """Return the pipelines of one type, of all depths that are allowed."""
    instance, units = by.instance, by.instance.table.units
    depths = [np.arange(2, min(int(count), instance.depth) + 1) for count in units]
    rows = np.concatenate([depth[:, None] * (np.arange(len(units)) == kind) for kind, depth in enumerate(depths)])
    return with_single_stages(instance, region, rows, space, longest)


def _shallowest(compositions: Compositions) -> Bools:
    """Return which rows have the fewest stages of their type."""
    least = np.where(compositions.counts > 0, compositions.counts, np.iinfo(np.int64).max).min(
        axis=0, initial=np.iinfo(np.int64).max
    )
    return np.asarray(compositions.stages == least[compositions.counts.argmax(axis=1)])


def _finished(compositions: Compositions, copies: Ints, seconds: float) -> Ints:
    """Return the micro-batches that all copies of the best composition of each type finish, [G]."""
    done = np.zeros(compositions.counts.shape[1], dtype=np.int64)
    np.maximum.at(done, compositions.counts.argmax(axis=1), copies * micro_batches(compositions, seconds))
    return done


def _shortest(compositions: Compositions, copies: Ints, total: int, low: float, high: float) -> float:
    """Return the seconds in which the types together finish `total` micro-batches, infinite beyond `high`."""
    if not len(compositions.stages) or _finished(compositions, copies, high).sum() < total:
        return np.inf
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _finished(compositions, copies, middle).sum() >= total else (middle, high)
    return coarse(high)


def _best_of_each_type(compositions: Compositions, copies: Ints, seconds: float) -> tuple[Composition, ...]:
    sizes = micro_batches(compositions, seconds)
    kinds, done = compositions.counts.argmax(axis=1), sizes * copies
    best = [rows[done[rows].argmax()] for kind in distinct(kinds) for rows in [np.flatnonzero(kinds == kind)]]
    return tuple(
        (tuple(compositions.counts[row].tolist()), int(copies[row]), int(sizes[row])) for row in best if done[row]
    )


def equal_replicas(by: Drafter, region: Region, incumbent: float, offer: Callable[[Draft], float]) -> None:
    """Offer plans of a region with equal replicas on the units of a setting; what cannot be shared out stays idle:
    of all numbers of replicas those that take least by their bound, and less than `incumbent` seconds."""
    instance, units = by.instance, by.instance.table.units
    numbers = np.arange(region.fewest, min(region.most, int(units.max()), instance.total) + 1)
    rows = units // numbers[:, None]
    rows = rows[(rows.sum(axis=1) > 1) & (rows.sum(axis=1) <= instance.depth)]
    rows = distinct_rows(rows)
    if not len(rows):
        return
    table = instance.capacity(region, incumbent, few=False)
    listed = columns(instance.table, instance.layers, table, rows, region, few=False)
    copies = np.where(listed.counts > 0, units // np.maximum(listed.counts, 1), instance.total).min(axis=1)
    seconds = least_seconds(listed, -(-instance.total // copies), instance.quick, incumbent)
    for row in np.argsort(seconds, kind="stable")[:EQUAL_PLANS]:
        if seconds[row] < incumbent:
            number = int(copies[row])
            chosen = [(tuple(listed.counts[row].tolist()), number, max(instance.total // number, 1))]
            draft = by.workshop.draft(chosen, instance.total)
            if draft is not None:
                offer(draft)
