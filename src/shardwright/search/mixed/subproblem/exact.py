"""In what time compositions can finish some micro-batches, told by their splits: all at once, or one by one where few.

The inequalities of `bounds` look at the bottleneck and the work of a split. Here a dynamic program goes through the
stages of a composition, in each order of its types, from the last to the first. For each number of layers that the
stages so far hold it keeps the least, over all splits, of

    R     their seconds of a micro-batch, x_i = f_i + b_i together,
    V     what they make the pipeline take: the largest over them of p_i + y_i, with p_i the seconds of those so far
          before stage i, and y_i = m x_i + max(R_i - h f_i, 0) + max(R_i - h b_i, 0) the work and idle time of stage i
          with h more forward passes before its first backward one (`cost.pipeline.bound`),
    Z, Z' what reduction and gathering leave after the pipeline: the largest of z_i less the passes before stage i,
    V + Z + Z', and V + Y, with Y the least that both leave at any stage beside a type that the pipeline lacks,
    N     the layers of stages that, beside a type on which the other replicas hold all but a few layers, leave too much
          for the seconds there are: more than these few cannot be.

One more stage in front adds x to R and p, takes its passes off what is left, and each of these never falls where one of
them rises. So the least of all is a bound on every split. Stages have the recomputation that fits and is fastest. Alike
layers are as small as the smallest one; where some are unlike, as dense ones before those with experts, how many layers
the stages so far hold says which ones they are.

The least R and the least V may be of different splits: one leaves most to the fastest type, the other keeps all stages
short. They are less so among the splits whose longest stage is within a narrow range of seconds: ranges that together
cover all prove more than all at once.

The bottleneck that the time leaves gives each stage a most of layers. Near the least time of a composition these are
hardly more than the model's, and so the splits are few: as many as there are ways to share out what is too much. Then
their pipelines are simulated one by one (`least_of_listed`), which the inequalities above can be some part of a percent
below.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import permutations
from math import comb, factorial

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.network.collectives import exposed_seconds
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.mixed.bounds.capacity import figures, least_moves, most_layers, stage_layers
from shardwright.search.mixed.bounds.compositions import Compositions, after, least_passes
from shardwright.search.mixed.bounds.travel import byte_seconds
from shardwright.search.mixed.drafts.split_times import lone_stages, pipeline_seconds, stages, tails, update_seconds
from shardwright.search.mixed.subproblem.domains import Standings, standings
from shardwright.search.mixed.subproblem.eligible import longest_bottleneck
from shardwright.search.mixed.tables.columns import RUNNING, Layers, Table, levelled
from shardwright.search.mixed.tables.compositions import every_order
from shardwright.search.mixed.tables.region import Region

MOST_WORK = 16_000_000  # stages times layers before and in them that are looked at in one call
MOST_STAGES = 40_000  # of unlike layers that are timed in one call
MOST_ORDERS = 24
NEVER = 1e9  # seconds of what does not fit
AGES = 1e15  # seconds, where there is no limit
ANY = (0.0, np.inf)
FIGURES = 8  # kept for each number of layers
MOST_SPLITS = 2_000  # of each order of the types
FIRST, INNER, LAST = 0, 1, 2


@record(kw_only=False)
class _Orders:
    """R orders of compositions, deepest first, in ways to stand in domains (`domains`): which composition each is of,
    `owner`, and its `depth` [R]; the types of its stages, the last one first, `kinds` [R, P]; the seconds of a message
    from each to the one before it in that order, [R, P]; and which type that it lacks has a layer of it, `beside` [R]
    (-1: none). `crowds` [C] are how many copies of a layer a domain may have, `crowd` [R, P] says which for a stage."""

    owner: Ints
    depth: Ints
    kinds: Ints
    moves: Floats
    beside: Ints
    crowds: Ints
    crowd: Ints


@record(kw_only=False)
class _Elsewhere:
    """What other replicas hold where replicas of a region hold all layers: beside each order, [R], on the type `kind`
    (-1: not known) all but `spare` layers. What gradients and weights leave after the pipeline must be over within
    `late` seconds, and no stage takes longer than `longest`."""

    kind: Ints
    spare: Floats
    late: Floats
    longest: Floats


def least_by_splits(
    table: Table,
    layers: Layers,
    region: Region,
    compositions: Compositions,
    micro_batches: Ints,
    seconds: float,
    bottleneck: tuple[float, float] = ANY,
    *,
    total: int,
) -> Floats:
    """(P6) Return seconds in which no split of each composition finishes `micro_batches` [N] of a `total`, of those
    whose longest stage takes `bottleneck` seconds (from, to): infinite where none does within `seconds`, zero where
    nothing is said. Of too many compositions the first ones are looked at."""
    least = np.zeros(len(compositions.stages))
    longest = longest_stage(compositions, micro_batches, seconds)
    several = compositions.stages > 1
    least[several & (longest <= 0.0)] = np.inf
    rows = np.flatnonzero(several & (longest > 0.0))
    orders = factorial(int((compositions.counts[rows] > 0).any(axis=0).sum())) if len(rows) else 0
    if not 0 < orders <= MOST_ORDERS:
        return least
    fastest = np.where(compositions.counts[rows] > 0, layers.seconds, np.inf).min(axis=1)
    most = most_together(layers, float((longest[rows] / fastest).max()) * (1.0 + 1e-9) + 1e-9)
    short = compositions.stages[rows] * most < table.layers
    least[rows[short]] = np.inf
    rows = rows[~short]
    if not len(rows):
        return least
    of_row, standing = standings(table, region, compositions.counts[rows])
    work = orders * np.cumsum(np.bincount(of_row) * compositions.stages[rows]) * table.layers * most
    rows = rows[work <= MOST_WORK]
    if not len(rows):
        return least
    counts, held = compositions.counts[rows], runs_of(table, layers, most)
    if held.unlike and len(held.begin) * table.types * int(compositions.stages[rows].max()) > MOST_STAGES:
        return least
    lines = _orders(table, region, counts, of_row[of_row < len(rows)], standing)
    later, size = after(table, layers, counts, region), micro_batches[rows]
    kind, spare = _held_elsewhere(table, layers, region, counts, total - size, seconds)
    late = seconds * (1.0 + 1e-9) - later - least_passes(compositions.take(rows), size)
    of = lines.owner
    elsewhere = _Elsewhere(kind=kind[of], spare=spare[of], late=late[of], longest=np.minimum(longest[rows], AGES)[of])
    times = _pipeline_and_tail(held, region, lines, elsewhere, size[of], bottleneck)
    best = np.full(len(rows), np.inf)
    np.minimum.at(best, of, times)
    best += later
    least[rows] = np.where(best <= seconds * (1.0 + 1e-9), best, np.inf)
    return least


def longest_stage(compositions: Compositions, micro_batches: Ints, seconds: float) -> Floats:
    """Return the longest bottleneck with which compositions finish `micro_batches` [N] within `seconds`, [N]: negative
    where there is none."""
    left, stages = seconds - compositions.after.min(axis=1), compositions.stages.astype(np.float64)
    return longest_bottleneck(left, compositions.work[:, -1], micro_batches, stages, 1.0 - compositions.share)


def _held_elsewhere(
    table: Table, layers: Layers, region: Region, counts: Ints, micro_batches: Ints, seconds: float
) -> tuple[Ints, Floats]:
    """Return for each composition [N, G] a type on which the other replicas of a plan hold all but so many layers, and
    how many these are, [N] each.

    On other types they have the units that the composition leaves. Each replica holds all layers, so that the memory of
    all units is shared out among them; and where all of them finish `micro_batches` [N] within `seconds`, one of them
    has no more time for each than all units have for all."""
    kinds, nothing = np.full(len(counts), -1), np.full(len(counts), np.inf)
    if region.fewest < 2 or len(region.used) < 2:
        return kinds, nothing
    used = np.array(region.used)
    of, left = figures(table, layers, region.most), np.maximum(table.units - counts, 0)[:, used]
    most, _ = most_layers(of, np.full((1, 1), seconds), of.room[:, None], np.ones((1, 1)), region.modes, layers)
    stored = left * np.maximum(most[used, 0, 0], 0.0) / (region.fewest - 1)
    passed = left * (min(seconds, AGES) / layers.seconds[used]) / np.maximum(micro_batches, 1)[:, None]
    spare = np.minimum(*(room.sum(axis=1, keepdims=True) - room for room in (stored, passed)))
    least = spare.argmin(axis=1)
    spare = (1.0 + 1e-9) * spare[np.arange(len(counts)), least] / float(layers.weight.min())
    return np.where(spare < table.layers, used[least], kinds), spare


def _orders(table: Table, region: Region, counts: Ints, composition: Ints, standing: Standings) -> _Orders:
    """Return all orders of the types of compositions [N, G], in the ways in which they may stand in domains: `standing`
    has those of the `composition` [R] each, and maybe of more after these."""
    arranged = every_order(counts[composition])
    at = arranged.stages[:, None] - 1 - np.arange(int(counts.sum(axis=1).max()))
    kinds = np.zeros_like(at)
    for kind in range(counts.shape[1]):
        start = arranged.start[:, kind, None]
        kinds[(at >= start) & (at < start + arranged.counts[:, kind, None])] = kind
    way = np.arange(len(kinds)) % len(composition)
    _, chosen = np.unique(np.column_stack([-arranged.stages, way, kinds]), axis=0, return_index=True)
    way, kinds, at = way[chosen], kinds[chosen], at[chosen]
    owner, place = composition[way], at - np.take_along_axis(arranged.start[chosen], kinds, axis=1)
    leaves, crowd = standing.of(way, kinds, np.maximum(place, 0))
    moves = np.zeros(kinds.shape)
    moves[:, 1:] = least_moves(table, region, kinds[:, :-1], kinds[:, 1:])
    leaves[:, 1:] &= kinds[:, :-1] == kinds[:, 1:]
    moves[:, 1:] = np.where(leaves[:, 1:], table.far[kinds[:, 1:]], moves[:, 1:])
    beside = np.full(len(owner), -1)
    for other in sorted(region.used, key=lambda kind: -float(table.links[kind])):
        beside[counts[owner, other] == 0] = other
    levels, level = np.unique(crowd, return_inverse=True)
    return _Orders(owner, arranged.stages[chosen], kinds, moves, beside, levels, level.reshape(crowd.shape))


def _stages(held: Runs, region: Region, depth: int, crowds: Ints) -> Mapping[str, Floats]:
    """Return figures of stages by their type, micro-batches in flight and run of layers, [G, depth, K]; with `late`,
    [G + 1, G, depth, K], what gradients and weights need beside another type (the last: none). What they need where
    a domain has no more than so many copies, `crowds` [C], comes first: `reduce` and `gather` are [C, G, depth, K]."""
    table, shape = held.table, (held.table.types, depth, len(held.begin))
    kind, flight, run = (of.ravel() for of in np.indices(shape))
    weights = np.stack([table.dense[:, -1], table.expert[:, -1]])
    lone = lone_stages(
        table, kind, held.begin[run], held.end[run], flight + 1, staged=True, copies=region.most, modes=region.modes
    )

    def left(width: float, passes: Floats, *beside: int, crowd: int | None = None) -> Floats:
        once = byte_seconds(table, weights, region, beside=beside, crowd=crowd)[:, kind]
        once = (once * lone.weights).sum(axis=0)
        return exposed_seconds(width * once, passes)

    reduced = table.reduced_bytes, table.reduced_beside * lone.own_backward
    gathered = table.gathered_bytes, table.gathered_beside * lone.forward
    nothing = np.zeros(len(kind))
    late = [
        left(*reduced, other) + left(*gathered, other) if other in region.used else nothing
        for other in range(table.types)
    ]
    columns = {
        "forward": lone.forward,
        "backward": lone.backward,
        "own": lone.own_backward,
        "never": np.where(lone.fits, 0.0, NEVER),
    }
    of_runs = {name: column.reshape(shape) for name, column in columns.items()}
    by_crowd = {
        name: np.array([left(*sent, crowd=crowd) for crowd in crowds.tolist()]).reshape(-1, *shape)
        for name, sent in (("reduce", reduced), ("gather", gathered))
    }
    return of_runs | by_crowd | {"late": np.array([*late, nothing]).reshape(-1, *shape)}


def _pipeline_and_tail(
    held: Runs,
    region: Region,
    lines: _Orders,
    elsewhere: _Elsewhere,
    micro_batches: Ints,
    bottleneck: tuple[float, float],
) -> Floats:
    """Return the least seconds of all micro-batches through each pipeline, with what gradients and weights leave after
    it, [R]. Stages hold runs of layers; the longest takes `bottleneck` seconds (from, to)."""
    deepest, total, most = lines.kinds.shape[1], held.table.layers, held.most
    of = _stages(held, region, deepest, lines.crowds)
    best = np.full(len(lines.owner), np.inf)
    # By layers so far, after as many that cannot be: of splits with a stage as long as the longest must be, and of
    # those that have none so far, if one must.
    state = np.full((2 if bottleneck[0] > 0.0 else 1, FIGURES, len(lines.owner), most + total + 1), NEVER)
    state[-1, :, :, most] = 0.0
    sizes = (most - np.arange(most)).reshape(-1, 1, 1, 1)
    for before in range(deepest):
        n = int((lines.depth > before).sum())
        m = micro_batches[:n, None].astype(np.float64)
        # So many layers the stages so far can hold while those in front of them hold the others.
        least_so_far = max(before + 1, total - (deepest - before - 1) * most)
        most_so_far = min((before + 1) * most, total - (int(lines.depth[n - 1]) - before - 1))
        if held.unlike:
            run = held.at[None, least_so_far : most_so_far + 1]
        else:
            run = held.at[np.where(lines.depth[:n] == before + 1, FIRST, LAST if before == 0 else INNER), None]
        run = run.transpose(2, 0, 1)[:, None]
        at = (lines.kinds[:n, before, None], np.minimum(micro_batches[:n, None], before + 1) - 1, run)
        stage = {name: column[at] for name, column in of.items() if column.ndim == len(at)}
        late = of["late"][(lines.beside[:n, None], *at)]
        reduce, gather = (of[name][(lines.crowd[:n, before, None], *at)] for name in ("reduce", "gather"))
        ahead = np.where(lines.depth[:n] > before + 1, lines.moves[:n, min(before + 1, deepest - 1)], 0.0)
        forward = stage["forward"] + lines.moves[:n, before, None]
        backward = stage["backward"] + ahead[:, None]
        windows = sliding_window_view(state[:, :, :n, least_so_far : most_so_far + most], most, axis=3)
        r, v, z, y, vz, vy, least, near = np.moveaxis(windows, (1, -1), (0, 1))
        x = forward + backward
        is_long = x >= bottleneck[0]
        x = np.where(x <= bottleneck[1], x, NEVER) + stage["never"]
        passes = stage["own"] + stage["forward"]
        others = np.minimum(before, m - 1.0)
        early, later = np.maximum(r - others * forward, 0.0), np.maximum(r - others * backward, 0.0)
        idle = np.where(m >= before + 2.0, early + later, np.maximum(early, later))
        trips, rest = np.divmod(m - 1.0, before + 1.0)
        r = r + x
        chain = (trips + 1.0) * r + rest * np.maximum(forward, backward)
        v = np.maximum(np.maximum(v + x, m * x + idle), chain)
        z = np.maximum(z - stage["own"], reduce)
        y = np.maximum(y - stage["forward"], gather)
        vz = np.maximum(vz + x - passes, v + z + y)
        least = np.minimum(np.maximum(least - passes, 0.0), late) if before else late
        vy = np.maximum(np.minimum(vy + x - passes, v + late), v + least) if before else v + late
        other, front = elsewhere.kind[:n, None], (lines.depth[:n, None] - before - 1) * elsewhere.longest[:n, None]
        soon = (other < 0) | (other == at[0]) | (of["late"][(other, *at)] <= elsewhere.late[:n, None] + front)
        near = near + np.where(soon, 0.0, sizes)
        columns = slice(most + least_so_far, most + most_so_far + 1)
        state = np.full((len(state), FIGURES, n, most + total + 1), NEVER)
        for name, variable in enumerate((r, v, z, y, vz, vy, least, near)):
            state[:, name, :, columns] = _least_of_both(np.broadcast_to(variable, r.shape), is_long)
        done = np.flatnonzero(lines.depth[:n] == before + 1)
        best[done] = np.maximum(state[0, 4, done, -1], state[0, 5, done, -1])
        best[done[state[0, 7, done, -1] > elsewhere.spare[done]]] = np.inf
    return best


def _least_of_both(seconds: Floats, is_long: Bools) -> Floats:
    """Return the least over the layers of a stage, [layers, 1 or 2, …], of splits with a long stage and of those with
    none: one that `is_long` makes the former of the latter."""
    if seconds.shape[1] == 1:
        return np.asarray(seconds.min(axis=0))
    some, none = seconds[:, :1].min(axis=0), seconds[:, 1:]
    now_some = np.where(is_long, none, NEVER).min(axis=0)
    return np.concatenate([np.minimum(some, now_some), np.where(is_long, NEVER, none).min(axis=0)])


def least_of_listed(
    table: Table, layers: Layers, region: Region, column: Compositions, micro_batches: int, seconds: float
) -> float:
    """(P6) Return seconds in which no split of the composition `column`, one of two stages or more, finishes
    `micro_batches`: infinite where none does within `seconds`, zero where there are too many to tell."""
    counts, least = column.counts[0], np.inf
    orders = [np.array(order) for order in permutations(np.flatnonzero(counts).tolist())]
    if not layers.whole or len(orders) > MOST_ORDERS:
        return 0.0
    longest = longest_stage(column, np.array([micro_batches]), seconds)
    once = byte_seconds(table, layers.all_weights, region)
    for order in orders:
        kinds = np.repeat(order, counts[order])
        starts = _splits(table, layers, region, kinds, micro_batches, float(longest[0]))
        if starts is None:
            return 0.0
        times = stages(table, kinds, starts, micro_batches=micro_batches, copies=region.most, modes=region.modes)
        times = times.take(np.flatnonzero(times.fits))
        if len(times):
            moves = least_moves(table, region, kinds[:-1], kinds[1:])
            gathered = once[0, kinds] * times.dense + once[1, kinds] * times.expert
            later = sum(part.max(axis=1) for part in tails(table, times, gathered))
            later = later + update_seconds(table, kinds, times, region.most).max(axis=1)
            later = later + table.tied_between(kinds, len(kinds))
            least = min(least, float((pipeline_seconds(times, moves, micro_batches) + later).min()))
    least += float(table.norm_seconds(int(counts.sum()) * region.fewest)[0, counts > 0].max())
    return least if least <= seconds * (1.0 + 1e-9) else np.inf


def _splits(
    table: Table, layers: Layers, region: Region, kinds: Ints, micro_batches: int, longest: float
) -> Ints | None:
    """Return all splits [N, P + 1] whose stages take no longer than `longest` seconds, None where they are too many."""
    depth = len(kinds)
    flight = np.minimum(micro_batches, depth - np.arange(depth)).astype(np.float64)
    of = figures(table, layers, region.most).take(kinds)
    most = stage_layers(of, flight, np.array([longest * (1.0 + 1e-9)]), region.modes, layers)[0]
    most = np.minimum(np.floor(most + 1e-9), table.layers - depth + 1).astype(np.int64)
    more = int(most.sum()) - table.layers
    if most.min() < 1 or more < 0:
        return np.zeros((0, depth + 1), dtype=np.int64)
    if comb(more + depth - 1, depth - 1) > MOST_SPLITS:
        return None
    held = most - _shared(more, depth)
    held = held[(held >= 1).all(axis=1)]
    return np.concatenate([np.zeros((len(held), 1), dtype=np.int64), np.cumsum(held, axis=1)], axis=1)


@lru_cache(maxsize=256)
def _shared(number: int, parts: int) -> Ints:
    """Return all ways to share out `number` over `parts`, [N, parts]."""
    if parts == 1:
        return np.array([[number]])
    rest = [(first, _shared(number - first, parts - 1)) for first in range(number + 1)]
    return np.concatenate([np.column_stack([np.full(len(more), first), more]) for first, more in rest])


@record(kw_only=False)
class Runs:
    """Runs of layers that stages of a table hold, `begin` to `end` [K], of which no two are alike. `at` says which one
    a stage holds, with the `most` layers first and a single one last: where layers are alike by its place, [3, most],
    where some are not (`unlike`) by how many layers it and the stages after it hold, [L + 1, most]."""

    table: Table
    begin: Ints
    end: Ints
    at: Ints
    unlike: bool

    @property
    def most(self) -> int:
        return int(self.at.shape[1])


def most_together(layers: Layers, weight: float) -> int:
    """Return how many layers that follow each other, at most and not all, count as `weight` or less: one at least."""
    sums = np.append(0.0, np.cumsum(layers.weight))
    counts = range(1, len(layers.weight))
    return max([1, *(count for count in counts if (sums[count:] - sums[:-count]).min() <= weight)])


def runs_of(table: Table, layers: Layers, most: int) -> Runs:
    """Return the runs of up to `most` layers. Where layers are alike all are like the least one."""
    count = table.layers
    held = most - np.arange(most)
    if layers.whole:
        begin = np.array([0 * held, 0 * held + 1, count - held])
        return Runs(levelled(table), begin.ravel(), (begin + held).ravel(), np.arange(3 * most).reshape(3, most), False)
    columns = [np.diff(getattr(table, name), axis=-1)[..., 1:-1].reshape(-1, count) for name in RUNNING]
    _, kinds = np.unique(coarse(np.concatenate(columns)), axis=1, return_inverse=True)
    names: list[int] = kinds.ravel().tolist()
    runs: dict[tuple[int, ...], tuple[int, int, int]] = {}
    at = np.zeros((count + 1, most), dtype=np.int64)
    for start in range(count):
        for place in range(most):
            stop = min(start + most - place, count)
            key = (start == 0, stop == count, *names[start:stop])
            at[count - start, place] = runs.setdefault(key, (len(runs), start, stop))[0]
    _, first, last = np.array(list(runs.values())).T
    return Runs(table, first, last, at, True)
