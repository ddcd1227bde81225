"""Good layer splits of a composition: the order of its types and the layers of every stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, permutations
from math import comb

import numpy as np

from shardwright.arrays import Floats, Ints, distinct_rows, picked
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.mixed.bounds.capacity import Figures, figures, stage_layers
from shardwright.search.mixed.bounds.travel import layers_in_tail, travel
from shardwright.search.mixed.drafts.split_times import SplitTimes, after_seconds, pipeline_seconds, stages
from shardwright.search.mixed.tables.columns import Layers, Table
from shardwright.search.mixed.tables.compositions import Ends
from shardwright.search.mixed.tables.region import Region

TRIED = 24  # bottleneck times for each order
WIDEST = 1.25  # the longest of them, as a multiple of the least
MOST_ORDERS = 24
NOTED, LESS = 0.02, (0.7, 0.4)  # part of the pipeline's time that is worth less of it after the pipeline, and how much
ROUNDS, POINTS = 3, 48  # of the search for the least bottleneck
FEW = 256  # splits that are all looked at


@record
class Line:
    """One pipeline: types of its stages [P], where each starts [P + 1], recomputation, and what was found of it."""

    kinds: tuple[int, ...]
    starts: tuple[int, ...]
    recompute: tuple[tuple[int, int], ...]
    seconds: float
    after: float


@record
class Surroundings:
    """What a pipeline is costed in: copies of the model, the recomputations and ends allowed, and the type whose links
    join copies of a stage (None: its own)."""

    copies: int
    modes: tuple[int, ...]
    ends: Ends
    slowest: int | None


@record
class FittingSplits:
    """Layer splits of a composition that fit: types of the stages [N, P], starts [N, P + 1], stages, and the exact
    pipelines [N]."""

    kinds: Ints
    starts: Ints
    stages: SplitTimes
    seconds: Floats


def stages_of(table: Table, line: Line, micro_batches: int, copies: int, modes: tuple[int, ...]) -> SplitTimes:
    """Return the stages of a line with another number of micro-batches, as one split."""
    kinds, starts = np.array(line.kinds), np.array([line.starts])
    return stages(table, kinds, starts, micro_batches=micro_batches, copies=copies, modes=modes)


def retimed(table: Table, line: Line, times: SplitTimes, micro_batches: int, copies: int) -> Line | None:
    """Return a line, one of `copies` replicas, with another number of micro-batches, with which it has the stages
    `times`, or None if these do not fit. What comes after the pipeline counts as before."""
    if not times.fits[0]:
        return None
    kinds = np.array(line.kinds)
    seconds = pipeline_seconds(times, moves_of(table, kinds, copies), micro_batches)
    return _line(kinds, np.array(line.starts), times, 0, float(seconds[0]), line.after)


def splits(
    table: Table, layers: Layers, counts: Ints, micro_batches: int, around: Surroundings
) -> FittingSplits | None:
    """Return the splits worth a look of all orders of the types of a composition, or None if none fits."""
    present = [kind for kind in range(len(counts)) if counts[kind]]
    orders = [np.repeat(np.array(order), counts[list(order)]) for order in list(permutations(present))[:MOST_ORDERS]]
    tries = [(kinds, candidates(table, layers, kinds, micro_batches, around)) for kinds in orders]
    fitting = _fitting(table, tries, micro_batches, around)
    if fitting is None or comb(table.layers - 1, int(counts.sum()) - 1) <= FEW:
        return fitting
    tries = []
    after = after_seconds(table, fitting.kinds, fitting.stages, around.copies, None)
    for kinds in orders:
        rows = np.flatnonzero((fitting.kinds == kinds).all(axis=1))
        place = rows[coarse(fitting.seconds + after)[rows].argmin()] if len(rows) else None
        if place is not None and after[place] > NOTED * fitting.seconds[place]:
            tails = [part * float(after[place]) for part in LESS]
            tries += [(kinds, candidates(table, layers, kinds, micro_batches, around, tail)) for tail in tails]
    return _joined(fitting, _fitting(table, tries, micro_batches, around))


def _fitting(
    table: Table, tries: Sequence[tuple[Ints, Ints]], micro_batches: int, around: Surroundings
) -> FittingSplits | None:
    """Return those of the splits (types, starts) that fit, if there are any."""
    if not sum(len(starts) for _, starts in tries):
        return None
    kinds = np.concatenate([np.broadcast_to(kinds, (len(starts), len(kinds))) for kinds, starts in tries])
    moved = [moves_of(table, kinds, around.copies) for kinds, _ in tries]
    moves = np.repeat(moved, [len(starts) for _, starts in tries], axis=0)
    starts = np.concatenate([starts for _, starts in tries])
    times = stages(table, kinds, starts, micro_batches=micro_batches, copies=around.copies, modes=around.modes)
    rows = np.flatnonzero(times.fits)
    if not len(rows):
        return None
    some = times.take(rows)
    seconds = pipeline_seconds(some, moves[rows], micro_batches)
    return FittingSplits(kinds=kinds[rows], starts=starts[rows], stages=some, seconds=seconds)


def _joined(first: FittingSplits, other: FittingSplits | None) -> FittingSplits:
    if other is None:
        return first
    return FittingSplits(
        kinds=np.concatenate([first.kinds, other.kinds]),
        starts=np.concatenate([first.starts, other.starts]),
        stages=SplitTimes.concatenated([first.stages, other.stages]),
        seconds=np.concatenate([first.seconds, other.seconds]),
    )


def best_line(table: Table, fitting: FittingSplits | None, around: Surroundings) -> Line | None:
    """Return the best pipeline of all splits, or None if there are none."""
    if fitting is None:
        return None
    after = after_seconds(table, fitting.kinds, fitting.stages, around.copies, around.slowest)
    place = int(coarse(fitting.seconds + after).argmin())
    seconds = float(fitting.seconds[place])
    return _line(fitting.kinds[place], fitting.starts[place], fitting.stages, place, seconds, float(after[place]))


def _line(kinds: Ints, starts: Ints, times: SplitTimes, place: int, seconds: float, after: float) -> Line:
    recompute = zip(times.recompute[place].tolist(), times.recompute_layers[place].tolist(), strict=True)
    return Line(
        kinds=tuple(kinds.tolist()),
        starts=tuple(starts.tolist()),
        recompute=tuple(recompute),
        seconds=seconds,
        after=after,
    )


def moves_of(table: Table, kinds: Ints, copies: int = 1) -> Floats:
    """Return the seconds of a message between neighbours, [P - 1]: of one type in one domain as long as it lasts, and
    between sites over a link that all `copies` of the pipeline share."""
    moves = []
    at: dict[int, int] = {}
    for here, there in zip(kinds[:-1].tolist(), kinds[1:].tolist(), strict=True):
        at[here] = at.get(here, 0) + 1
        if here != there:
            over = table.activation_bytes * copies / table.site_rates[here, there] + table.site_delays[here, there]
            moves.append(max(float(table.far[here]), float(table.far[there]), float(over)))
        else:
            crosses = at[here] % int(table.local[here]) == 0
            moves.append(float((table.far if crosses else table.near)[here]))
    return np.array(moves)


def _with_moves(of: Figures, table: Table, kinds: Ints, copies: int) -> Figures:
    """Return the figures of all stages with the messages that each of them has to send in this pipeline."""
    moves = moves_of(table, kinds, copies)
    overhead = 2.0 * table.each[kinds] + np.append(moves, of.move[-1]) + np.insert(moves, 0, of.move[0])
    return replace(of, overhead=overhead)


def candidates(
    table: Table, layers: Layers, kinds: Ints, micro_batches: int, around: Surroundings, tail: float = np.inf
) -> Ints:
    """Return splits worth a simulation, [N, P + 1]: all where there are few, or else for several bottlenecks those that
    fill stages up to it and take what is too much away from the slowest, from the first, or from the last. They leave
    about `tail` seconds after the pipeline at most."""
    depth, total = len(kinds), table.layers
    if comb(total - 1, depth - 1) <= FEW:
        return around.ends.kept(every_split(total, depth))
    flight = np.minimum(micro_batches, depth - np.arange(depth)).astype(np.float64)

    of = _with_moves(figures(table, layers, around.copies).take(kinds), table, kinds, around.copies)
    copies = around.copies
    alike = Region(fewest=copies, most=copies, modes=around.modes, link=np.inf, used=())
    needs = travel(table, layers, alike)[0] if np.isfinite(tail) else None

    def room(seconds: Floats) -> Ints:
        most = stage_layers(of, flight, seconds, around.modes, layers)
        if needs is not None:
            most = np.minimum(most, layers_in_tail(needs, kinds, seconds, tail))
        return np.floor(np.clip(most, 0.0, total) + 1e-9).astype(np.int64)

    share, slow = (
        layers.total / (1.0 / layers.seconds[kinds]).sum(),
        np.argsort(-coarse(layers.seconds[kinds]), kind="stable"),
    )
    counts = [_filled(room, slow, total, share, *ends) for ends in around.ends.pairs()]
    splits = distinct_rows(np.concatenate(counts))
    starts = np.zeros((len(splits), depth + 1), dtype=np.int64)
    np.cumsum(splits, axis=1, out=starts[:, 1:])
    return around.ends.kept(starts)


def _filled(
    room: Callable[[Floats], Ints], slow: Ints, total: int, share: float, first: int | None, last: int | None
) -> Ints:
    """Return layers of the stages [N, P], `total` together, where `room` says how many fit within each of some times:
    `share` is about the least of these, `slow` are the stages [P], slowest first. The ends have `first` and `last`
    layers, where these are given."""
    depth = len(slow)
    fixed = {place: held for place, held in ((0, first), (depth - 1, last)) if held is not None}

    def caps_within(seconds: Floats) -> Ints:
        caps = room(seconds)
        for place, held in fixed.items():
            caps[:, place] = np.where(caps[:, place] >= held, held, 0)
        return caps

    low, high = 0.5 * share, 64.0 * share
    for _ in range(ROUNDS):
        seconds = coarse(np.geomspace(low, high, POINTS))
        caps = caps_within(seconds)
        enough = (caps >= 1).all(axis=1) & (caps.sum(axis=1) >= total)
        if not enough.any():
            return np.zeros((0, depth), dtype=np.int64)
        place = int(enough.argmax())
        low, high = float(seconds[max(place - 1, 0)]), float(seconds[place])
    caps = caps_within(coarse(np.geomspace(high, high * WIDEST, TRIED)))
    free = np.array([place for place in range(depth) if place not in fixed], dtype=np.int64)
    counts = [_reduced(caps, order, total) for order in (slow[np.isin(slow, free)], free, free[::-1])]
    counts.append(_levelled(caps, free, total))
    splits = np.concatenate(counts)
    return picked(splits, (splits.sum(axis=1) == total) & (splits >= 1).all(axis=1))


@lru_cache(maxsize=64)
def every_split(total: int, depth: int) -> Ints:
    """Return all splits of `total` layers, [N, P + 1]; none where there are more stages than layers."""
    cuts = combinations(range(1, total), depth - 1)
    return np.array([(0, *cut, total) for cut in cuts], dtype=np.int64).reshape(-1, depth + 1)


def _reduced(caps: Ints, order: Ints, total: int) -> Ints:
    """Return caps less the surplus, taken from the stages in `order`, each left with a layer at least."""
    reduced = caps.copy()
    surplus = caps.sum(axis=1) - total
    for stage in order:
        taken = np.minimum(surplus, reduced[:, stage] - 1)
        reduced[:, stage] -= taken
        surplus = surplus - taken
    return reduced


def _levelled(caps: Ints, stages: Ints, total: int) -> Ints:
    """Return caps less the surplus, taken from all `stages` in turn, first stages first, each left with a layer."""
    levelled = caps.copy()
    surplus = caps.sum(axis=1) - total
    while (surplus > 0).any():
        before = int(surplus.sum())
        for stage in stages:
            take = (surplus > 0) & (levelled[:, stage] > 1)
            levelled[:, stage] -= take
            surplus = surplus - take
        if int(surplus.sum()) == before:
            break
    return levelled
