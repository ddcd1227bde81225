"""How many micro-batches a replica can finish in a time, at most, whatever its layer split and stage order.

Let x_i be the seconds of one micro-batch in stage i of P (forward and backward, with transfers), tau their maximum, W
their sum, R_i the sum after stage i, and m the micro-batches. 1F1B takes at least, for every i (`cost.pipeline.bound`),

    W - R_i + (m - 1) x_i   and, for m > P,   W + R_i + (m - 1 - (P - i)) x_i .

At a stage with x_i = tau, R_i >= W - i tau, so for m > P the time is at least

    W + (m - 1) tau - min(P tau - W, (P - 1) tau / 2, D)                                                      (1)

where the second term of the minimum is the larger of both at R_i = (P - i) tau / 2, and D is by how much the stages
after the bottleneck are faster together, at most (`work.most_hidden`). A mean of both over all stages
with weights that make it independent of the split gives W (1 + (m - 1) / P) for m > P (2). For any m it is at least
m tau (3), and W + (m - 1) (1 - f) tau with f the greatest share of the forward pass in a stage (4): the first
micro-batch goes to the end and back, and a stage has m - 1 backward passes more to do before it gets back from there;
where f is more than a half, the last micro-batch waits for as many forward passes. For m <= P the second inequality
holds at the m - 1 last stages. All of them together leave

    2 W / (2 - (1 - 1 / m)^(P - m + 1))                                                                         (5)

of which the stages are W / P at m = P + 1; with fewer micro-batches the last ones are equal and the first ones longer.
The bounds rise with tau and W, so the least values of both give a bound for all splits. Derived here; tested against
the simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from shardwright.arrays import Array, Columns, Floats, Ints, least_enough, picked
from shardwright.cost.stage.relaxed import least_repeated
from shardwright.records import record
from shardwright.rounding import coarse, weighed
from shardwright.search.mixed.bounds.capacity import Capacity
from shardwright.search.mixed.bounds.travel import least_tail, parted_seconds, single_stage_seconds, travel
from shardwright.search.mixed.bounds.work import forward_share, held_of, layers_held, least_work, most_hidden
from shardwright.search.mixed.tables.columns import Layers, Table
from shardwright.search.mixed.tables.compositions import Arrangement, any_order, every_order, few_orders
from shardwright.search.mixed.tables.region import Region, agreement_delay, messages_between_sites, usable

MANY = np.int64(1 << 40)
STEPS = 20  # of the bisection for the least time of a composition
LEVELS = (1.005, 1.01, 1.02, 1.035, 1.05, 1.075, 1.1, 1.15, 1.25, 1.5)  # times the least bottleneck, looked at apart


@record
class Compositions(Columns):
    """Compositions [N, G] with what bounds their time: stages P; for bottlenecks from the least one up, [N, levels],
    their seconds, the least work, the least that the first micro-batch adds to all others, and the least seconds after
    the pipeline; the greatest share of a forward pass; the fewest and the most micro-batches for which the row
    holds."""

    counts: Ints
    stages: Ints
    bottleneck: Floats
    work: Floats
    first: Floats
    after: Floats
    share: Floats
    fewest: Ints
    most: Ints

    def take(self, rows: Array | slice) -> Compositions:
        """Return the given rows. Levels stay in one piece each (`picked`)."""
        chosen = np.arange(len(self))[rows]
        taken = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Compositions(**{name: picked(of, chosen) if of.ndim > 1 else of[chosen] for name, of in taken.items()})


def alone(table: Table, layers: Layers, region: Region) -> Compositions:
    """Return the compositions of a single stage, which pass one micro-batch after the other."""
    types, copies = np.flatnonzero(table.units > 0), region.most
    per_weight, more = table.kept_bytes(copies)
    total, weights = layers.total, layers.all_weights - _once_tied(table)
    ends = layers.first_ends + layers.last_ends - table.tied_parameters
    state = (per_weight * weights).sum(axis=0) + more * ends
    room = table.rooms(staged=False) - state - layers.first_bytes - layers.last_bytes
    seconds = total * layers.alone_seconds + layers.first_seconds + layers.last_seconds + 2.0 * table.each
    again = least_repeated(layers.least, region.modes, total, room, table.beside(last=True))
    seconds = seconds + np.where(np.isfinite(again), again, 0.0)
    later = single_stage_seconds(table, weights, region)
    later = later + (weights * table.updates(copies)).sum(axis=0) + total * layers.orthogonal / copies
    later = later + table.norm_seconds(region.fewest)[0] + agreement_delay(table, region)
    fits = np.isfinite(again) & usable(table, np.eye(table.types), region)
    kept_types = types[fits[types]]
    counts = np.eye(table.types, dtype=np.int64)[kept_types]
    work = seconds[kept_types]
    return Compositions(
        counts=counts,
        stages=np.ones(len(counts), dtype=np.int64),
        bottleneck=np.repeat(work[:, None], len(LEVELS) + 1, axis=1),
        work=np.repeat(work[:, None], len(LEVELS) + 1, axis=1),
        first=np.repeat(work[:, None], len(LEVELS) + 1, axis=1),
        after=np.repeat(later[kept_types, None], len(LEVELS) + 1, axis=1),
        share=np.zeros(len(counts)),
        fewest=np.ones(len(counts), dtype=np.int64),
        most=np.full(len(counts), MANY),
    )


def columns(
    table: Table, layers: Layers, capacity: Capacity, counts: Ints, region: Region, *, few: bool, ordered: bool = True
) -> Compositions:
    """Return what bounds the time of each composition `counts` [N, G] of two stages or more; without those that
    cannot hold the model. `ordered` looks at each order of the types, which takes longer."""
    arranged = every_order(counts) if ordered and few_orders(counts) else any_order(counts)
    # The capacity suffices at these entries and not at the ones before, so that those bound the bottleneck.
    shape, places = (-1, len(counts)), _least_places(capacity, arranged)
    if capacity.alone is not None:
        places = np.maximum(places, _least_places(capacity.alone, arranged))
    possible = np.flatnonzero(places.reshape(shape).min(axis=0) < len(capacity.seconds))
    counts, places = picked(counts, possible), places.reshape(shape)[:, possible]
    arranged = arranged.take((np.arange(len(places))[:, None] * shape[1] + possible).ravel())
    least_place = places.min(axis=0)
    least = capacity.seconds[np.maximum(least_place - 1, 0)]
    needs = travel(table, layers, region)
    always, parted = after(table, layers, counts, region), parted_seconds(table, layers, region)
    # At levels of the bottleneck: its least on a level counts with the least work and tail up to the next level.
    levels = np.array([1.0, *LEVELS])
    crossing = _crossing_seconds(table, region)
    beyond = max(crossing - float(table.far.max()), 0.0)  # what the work does not count as a message between types
    begin = np.maximum(least * levels[:, None], crossing)
    end = np.searchsorted(capacity.seconds, least * np.append(LEVELS, np.inf)[:, None])
    end = np.clip(end, least_place, len(capacity.seconds) - 1)
    # An order that holds too little within a level is no way to do it there.
    order, level, row = np.nonzero(places[:, None, :] <= end)
    each, place, tau = arranged.take(order * len(counts) + row), end[level, row], begin[level, row]
    held = held_of(capacity, each, place)
    each_work = least_work(table, layers, capacity, each, place) + 2.0 * region.crossings * beyond
    hidden = np.minimum(np.maximum(each.stages * tau - each_work, 0.0), 0.5 * (each.stages - 1) * tau)
    if each.known:
        hidden = np.minimum(hidden, most_hidden(table, layers, capacity, each, place, held, tau, region.modes))
    tail = least_tail(needs, each, held, capacity.seconds[place], layers)
    alone_late = np.where(each.counts > 0, parted, np.inf).min(axis=1) - (each.stages - 1) * capacity.seconds[place]
    tail = np.maximum(tail, alone_late) + _least_tied(table, each)
    work, first, later = (np.full(begin.shape, np.inf) for _ in range(3))
    for kept, values in ((work, each_work), (first, each_work - hidden), (later, tail)):
        np.minimum.at(kept, (level, row), values)
    stages = counts.sum(axis=1)
    return Compositions(
        counts=counts,
        stages=stages,
        bottleneck=begin.T,
        work=work.T,
        first=first.T,
        after=np.maximum(always, later).T,
        share=forward_share(table, layers, counts),
        fewest=np.ones_like(stages) if few else stages,
        most=stages - 1 if few else np.full(len(stages), MANY),
    )


def _least_places(capacity: Capacity, arranged: Arrangement) -> Ints:
    """Return the first time at which compositions can hold the model: as many as there are where they cannot."""
    places = np.full(len(arranged.counts), len(capacity.seconds))
    rows = np.flatnonzero(_layers(capacity, arranged, places - 1) >= capacity.needed)
    arranged, last = arranged.take(rows), places[rows] - 1
    places[rows] = least_enough(0 * last, last, lambda place: _layers(capacity, arranged, place) >= capacity.needed)
    return places


def _layers(capacity: Capacity, arranged: Arrangement, place: Ints) -> Floats:
    if arranged.known:
        return np.asarray(held_of(capacity, arranged, place).sum(axis=1))
    return layers_held(capacity, arranged.counts, place)


def after(table: Table, layers: Layers, counts: Ints, region: Region) -> Floats:
    """Return the seconds after the pipeline that no split avoids, [N]: the optimizer step, a tied embedding, and what
    the framework does. A weight of a layer may take longer than one of the ends."""
    # Counted as dense weights: as many of these take as long as the experts' beside them.
    end, *experts = np.maximum(table.updates(region.most), 1e-300)
    share = experts[0] / end
    per_layer = (layers.dense + share * layers.expert).min()
    updates = end + layers.orthogonal / region.most / per_layer
    speed = weighed(counts, 1.0 / updates)
    dense, expert = layers.first_weights + layers.last_weights
    ends = dense + share * expert - table.tied_parameters * (counts.sum(axis=1) == 1)[:, None]
    parameters = layers.total * per_layer + ends.min(axis=1) * (end / updates).min()
    once = np.where(counts > 0, table.norm_seconds(counts.sum(axis=1) * region.fewest), 0.0).max(axis=1)
    least = parameters / speed + once + least_tied(table, counts) + agreement_delay(table, region)
    return np.asarray(least)


def _once_tied(table: Table) -> Floats:
    """Return the weights that a stage with both ends has once instead of twice, dense ones and experts', [2, G]."""
    return np.stack([table.tied_parameters, 0.0 * table.tied_parameters])


def least_tied(table: Table, counts: Ints) -> Floats:
    """Return the least seconds to add the gradients of a tied embedding, [N]: the slower end of a pipeline decides, and
    types stand next to each other, so that of several types two have an end each, in machines of their own."""
    there = counts > 0
    alone = np.where(there, table.tied_seconds(counts.sum(axis=1)), np.inf).min(axis=1)
    apart = np.sort(np.where(there, table.tied_far, np.inf), axis=1)[:, min(1, counts.shape[1] - 1)]
    return np.asarray(np.where(there.sum(axis=1) > 1, apart, alone))


def _crossing_seconds(table: Table, region: Region) -> float:
    """Return the least seconds of a message between sites where all pipelines of a region cross."""
    if not region.crossings:
        return 0.0
    seconds = messages_between_sites(table, region)[np.ix_(region.used, region.used)]
    return float(seconds[seconds > 0.0].min())


def _least_tied(table: Table, arranged: Arrangement) -> Floats:
    """Return the least seconds to add the gradients of a tied embedding, [N], by both ends where these are known."""
    if not arranged.known:
        return least_tied(table, arranged.counts)
    apart = (arranged.begins != arranged.ends).any(axis=1)
    seconds = np.where(apart[:, None], table.tied_far, table.tied_seconds(arranged.stages))
    return np.asarray(np.where(arranged.begins | arranged.ends, seconds, 0.0).max(axis=1))


def micro_batches(compositions: Compositions, seconds: float | Floats) -> Ints:
    """(P1) Return the most micro-batches that a replica of each composition finishes within `seconds` (or [N]), [N]."""
    t = np.asarray(seconds)[..., None] - compositions.after
    tau, work, stages = compositions.bottleneck, compositions.work, compositions.stages[:, None].astype(np.float64)
    many = np.minimum(1.0 + (t - compositions.first) / tau, t / tau)
    many = np.minimum(many, 1.0 + stages * (t / work - 1.0))
    few = np.minimum(1.0 + (t - work) / ((1.0 - compositions.share)[:, None] * tau), t / tau)
    few = np.minimum(few, _most_rounds(compositions.stages, t / work))
    count = np.where(many >= stages + 1.0, many, np.minimum(few, stages))
    count = np.where(t >= work, count, 0.0)
    single = compositions.stages == 1
    best = count.max(axis=1)
    best = np.where(single, (t / tau)[:, 0], best)
    best = np.floor(np.minimum(np.maximum(best, 0.0), compositions.most) + 1e-9)
    return np.asarray(np.where(best >= compositions.fewest, best, 0.0), dtype=np.int64)


def least_passes(compositions: Compositions, micro_batches: Ints) -> Floats:
    """Return the least seconds of so many micro-batches [N] through each composition, without what comes after, [N]."""
    m, stages = (of[:, None].astype(np.float64) for of in (micro_batches, compositions.stages))
    tau, work = compositions.bottleneck, compositions.work
    many = np.maximum(compositions.first + (m - 1.0) * tau, work * (1.0 + (m - 1.0) / stages))
    few = np.maximum(work + (m - 1.0) * (1.0 - compositions.share)[:, None] * tau, work * least_rounds(m, stages))
    return np.asarray(np.maximum(np.where(m > stages, many, few), m * tau).min(axis=1))


def least_rounds(micro_batches: Floats, stages: Floats) -> Floats:
    """Return (5): how often as long as one micro-batch so many take at least, up to as many as there are stages."""
    front = np.maximum(stages - micro_batches + 1.0, 0.0)
    return np.asarray(2.0 / (2.0 - (1.0 - 1.0 / micro_batches) ** front))


def _most_rounds(stages: Ints, times: Floats) -> Floats:
    """Return how many micro-batches, up to as many as there are `stages` [N], may take so many `times` as long as one
    of them, [N, levels]."""
    known = _rounds(1 << int(stages.max(initial=1)).bit_length())
    begin = (stages * (stages - 1) // 2)[:, None]
    place = np.searchsorted(known, 3.0 * stages[:, None] + np.clip(times, 0.0, 2.5) * (1.0 + 1e-12), side="right")
    return (place - begin).astype(np.float64)


@lru_cache
def _rounds(deepest: int) -> Floats:
    """Return (5) for 1 to P micro-batches of pipelines of P = 1 to `deepest` stages, 3 P added to each: ascending."""
    stages = np.repeat(np.arange(1.0, deepest + 1.0), np.arange(1, deepest + 1))
    micro_batches = np.concatenate([np.arange(1.0, depth + 1.0) for depth in range(1, deepest + 1)])
    return 3.0 * stages + least_rounds(micro_batches, stages)


def least_seconds(compositions: Compositions, wanted: Floats, low: float, high: float) -> Floats:
    """Return the seconds in which each composition may finish `wanted` [N] micro-batches, infinite beyond `high`."""
    return coarse(earliest(partial(micro_batches, compositions), wanted, low, high, STEPS))


def earliest(
    finished: Callable[[Floats], Floats | Ints], wanted: Floats, low: float, high: float, steps: int
) -> Floats:
    """Return by so many `steps` of bisection in how many seconds `finished` reaches `wanted` [N] micro-batches, from
    `low` on and infinite beyond `high`."""
    least, most = np.full(len(wanted), low), np.full(len(wanted), high)
    possible = finished(most) >= wanted
    for _ in range(steps if possible.any() else 0):
        middle = 0.5 * (least + most)
        enough = finished(middle) >= wanted
        least, most = np.where(enough, least, middle), np.where(enough, middle, most)
    return np.where(possible, most, np.inf)
