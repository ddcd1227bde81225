"""How many micro-batches a replica can finish in a time, at most, whatever its layer split and stage order.

Let x_i be the seconds of one micro-batch in stage i of P (forward and backward, with transfers), tau their maximum, W
their sum, R_i the sum after stage i, and m the micro-batches. 1F1B takes at least, for every i (`cost.pipeline_bound`),

    W - R_i + (m - 1) x_i   and, for m > P,   W + R_i + (m - 1 - (P - i)) x_i .

At a stage with x_i = tau, R_i >= W - i tau, so for m > P the time is at least

    W + (m - 1) tau - min(P tau - W, (P - 1) tau / 2)                                                         (1)

where the second term of the minimum is the larger of both at R_i = (P - i) tau / 2. A mean of both over all stages
with weights that make it independent of the split gives W (1 + (m - 1) / P) for m > P (2). For any m it is at least
m tau (3), and W + (m - 1) (1 - f) tau with f the greatest share of the forward pass in a stage (4). The bounds rise
with tau and W, so the least values of both give a bound for all splits. Derived here; tested against the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from math import factorial

import numpy as np

from shardwright.cost.strategy import Floats, Ints
from shardwright.search.mixed.capacity import Capacity
from shardwright.search.mixed.region import Region, usable
from shardwright.search.mixed.stage_limits import IMPOSSIBLE
from shardwright.search.mixed.tables import Layers, Table
from shardwright.search.mixed.travel import single_stage_seconds

MANY = np.int64(1 << 40)
MOST_ORDERED = 1_500  # compositions times orders of types, up to which each order is looked at
LEVELS = (1.01, 1.03, 1.08, 1.2, 1.5)  # times the least bottleneck, at which the least work is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Compositions [N, G] with what bounds their time: stages P, the least bottleneck and the least work at it and at
    longer ones, [N, levels]; seconds after the pipeline that nothing avoids; the greatest share of a forward pass;
    the fewest and the most micro-batches for which the row holds."""

    counts: Ints
    stages: Ints
    bottleneck: Floats
    work: Floats
    after: Floats
    share: Floats
    fewest: Ints
    most: Ints

    def take(self, rows: Ints) -> Columns:
        return Columns(**{name: getattr(self, name)[rows] for name in self.__slots__})


def joined(parts: list[Columns]) -> Columns:
    """Return the rows of all parts."""
    return Columns(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in Columns.__slots__})


def alone(table: Table, layers: Layers, region: Region) -> Columns:
    """Return the compositions of a single stage, which pass one micro-batch after the other."""
    types, copies = np.flatnonzero(table.units > 0), region.most
    per_parameter = table.state_bytes + table.shared_bytes / copies
    total = layers.total
    parameters = total * (layers.dense + layers.expert) + layers.first_parameters + layers.last_parameters
    parameters = parameters - table.tied_parameters
    edges = layers.first_bytes + layers.last_bytes + np.maximum(table.logit_bytes - table.working_bytes, 0.0)
    room = table.room_bytes - table.fixed_bytes - per_parameter * parameters - edges
    seconds = total * layers.alone_seconds + layers.first_seconds + layers.last_seconds + 2.0 * table.each
    kept = total * layers.activations
    short = np.maximum(kept - room, 0.0)
    price = np.minimum(
        layers.recompute / np.maximum(layers.activations - layers.inputs, 1e-300),
        layers.core / np.maximum(layers.core_bytes, 1e-300),
    )
    fits = np.minimum(total * layers.inputs + table.again_bytes, total * (layers.activations - layers.core_bytes))
    seconds = seconds + price * short
    later = single_stage_seconds(table, parameters, region.fewest, region.link, region.used)
    later = later + parameters * table.update_seconds / copies + table.step_seconds
    fits = ((fits <= room) | (short <= 0.0)) & (later <= region.most_after) & usable(table, np.eye(table.types), region)
    kept_types = types[fits[types]]
    counts = np.eye(table.types, dtype=np.int64)[kept_types]
    work = seconds[kept_types]
    return Columns(
        counts=counts,
        stages=np.ones(len(counts), dtype=np.int64),
        bottleneck=np.repeat(work[:, None], len(LEVELS) + 1, axis=1),
        work=np.repeat(work[:, None], len(LEVELS) + 1, axis=1),
        after=np.maximum(later[kept_types], region.least_after),
        share=np.zeros(len(counts)),
        fewest=np.ones(len(counts), dtype=np.int64),
        most=np.full(len(counts), MANY),
    )


def columns(
    table: Table, layers: Layers, found: Capacity, counts: Ints, region: Region, *, few: bool, ordered: bool = True
) -> Columns:
    """Return what bounds the time of each composition `counts` [N, G] of two stages or more; without those that
    cannot hold the model. `ordered` looks at each order of the types, which takes longer."""
    counts, high = _least_places(found, counts, layers.total - 1e-6, ordered=ordered)
    # The capacity suffices at entry `high` and not at the one before, so that one bounds the bottleneck.
    least = found.seconds[np.maximum(high - 1, 0)]
    bottleneck: list[Floats] = []
    work: list[Floats] = []
    for level in (*LEVELS, np.inf):
        end = np.clip(np.searchsorted(found.seconds, least * level), high, len(found.seconds) - 1)
        begin = least if not bottleneck else least * LEVELS[len(bottleneck) - 1]
        bottleneck.append(begin)
        work.append(least_work(table, layers, found, counts, end))
    stages = counts.sum(axis=1)
    return Columns(
        counts=counts,
        stages=stages,
        bottleneck=np.stack(bottleneck, axis=1),
        work=np.stack(work, axis=1),
        after=after(table, layers, counts, region),
        share=forward_share(table, layers, counts),
        fewest=np.ones_like(stages) if few else stages,
        most=stages - 1 if few else np.full(len(stages), MANY),
    )


def few_orders(counts: Ints) -> bool:
    """Return whether all orders of the types of all compositions can be looked at."""
    return len(counts) * factorial(int(counts.any(axis=0).sum())) <= MOST_ORDERED


def _least_places(found: Capacity, counts: Ints, needed: float, *, ordered: bool) -> tuple[Ints, Ints]:
    """Return the compositions that can hold `needed` layers, and the first time at which they can: in any order of
    their types where `ordered`, else at least as early."""
    orders = list(permutations(np.flatnonzero(counts.any(axis=0)).tolist()))
    if not ordered or len(orders) < 2:
        return _bisected(counts, needed, len(found.seconds), partial(layers_held, found))
    last = len(found.seconds)
    least = np.full(len(counts), last)
    for order in orders:
        possible = np.flatnonzero(_layers_in_order(found, order, counts, np.full(len(counts), last - 1)) >= needed)
        rows, places = _bisected(counts[possible], needed, last, partial(_layers_in_order, found, order))
        assert len(rows) == len(possible), "the last time was tried"
        least[possible] = np.minimum(least[possible], places)
    return counts[least < last], least[least < last]


def _bisected(counts: Ints, needed: float, times: int, held: Callable[[Ints, Ints], Floats]) -> tuple[Ints, Ints]:
    """Return the compositions that hold `needed` layers at the last time, and the first at which they do."""
    high = np.full(len(counts), times - 1)
    possible = held(counts, high) >= needed
    counts, high = counts[possible], high[possible]
    low = np.zeros_like(high)
    while (low < high).any():
        middle = (low + high) // 2
        enough = held(counts, middle) >= needed
        high, low = np.where(enough, middle, high), np.where(enough, low, np.minimum(middle + 1, high))
    return counts, high


def _layers_in_order(found: Capacity, order: Sequence[int], counts: Ints, place: Ints) -> Floats:
    """Return the most layers that compositions hold within the time at `place` with their types in `order`."""
    stages = counts.sum(axis=1)
    total, start = np.zeros(len(counts)), np.zeros(len(counts), dtype=np.int64)
    for kind in order:
        count = counts[:, kind]
        end, there = start + count, count > 0
        flight = stages - start
        held = found.summed[kind, place, flight] - found.summed[kind, place, flight - count]
        travelled = found.travelled[kind, place, end] - found.travelled[kind, place, start]
        begins, ends = there & (start == 0), there & (end == stages)
        inner, at_first = found.inner[kind, place], found.travelled[kind, place]
        rows = np.arange(len(counts))
        held += np.where(begins, found.first[kind, place, stages - 1] - inner[rows, stages - 1], 0.0)
        held += np.where(ends, found.last[kind, place] - inner[:, 0], 0.0)
        travelled += np.where(begins, found.first_travelled[kind, place] - at_first[:, 1], 0.0)
        last = at_first[rows, stages] - at_first[rows, stages - 1]
        travelled += np.where(ends, found.last_travelled[kind, place, stages - 1] - last, 0.0)
        total += np.where(there, np.minimum(held, travelled), 0.0)
        start = end
    return total


def layers_held(found: Capacity, counts: Ints, place: Ints) -> Floats:
    """Return the most layers that compositions hold within the time at `place`, in whatever order of stages."""
    stages = counts.sum(axis=1)
    total = np.zeros(len(counts))
    first, last = np.full(len(counts), -np.inf), np.full(len(counts), -np.inf)
    for kind in range(counts.shape[1]):
        count = counts[:, kind]
        there, at = count > 0, np.maximum(count - 1, 0)
        one = np.minimum(found.first[kind, place, stages - 1], found.first_travelled[kind, place])
        more_first = one - found.inner[kind, place, at]
        more_last = found.last[kind, place] - found.inner[kind, place, 0]
        held = found.summed[kind, place, count] + np.maximum(more_first, 0.0) + np.maximum(more_last, 0.0)
        travelled = found.travelled[kind, place, stages]
        late = travelled - found.travelled[kind, place, stages - count]
        behind = travelled - found.travelled[kind, place, stages - at] + found.first_travelled[kind, place]
        base = np.minimum(held, late)
        total += np.where(there, base, 0.0)
        with_first = np.minimum(held + np.minimum(more_first, 0.0), behind)
        at_end = found.last_travelled[kind, place, stages - 1]
        ahead = found.travelled[kind, place, stages - 1] - found.travelled[kind, place, stages - count]
        with_last = np.minimum(held + np.minimum(more_last, 0.0), np.minimum(late, ahead + at_end))
        first = np.where(there, np.maximum(first, with_first - base), first)
        last = np.where(there, np.maximum(last, with_last - base), last)
    return np.asarray(total + first + last)


def least_work(table: Table, layers: Layers, found: Capacity, counts: Ints, place: Ints) -> Floats:
    """Return the least seconds of work of one micro-batch over all stages: layers on the fastest type as far as the
    bottleneck lets them, without recomputation as far as memory does."""
    stages = counts.sum(axis=1)
    extra = np.minimum(
        layers.recompute * layers.activations / np.maximum(layers.activations - layers.inputs, 1e-300),
        layers.core * layers.activations / np.maximum(layers.core_bytes, 1e-300),
    )
    slopes = np.concatenate([layers.seconds, layers.seconds + extra])
    left = np.full(len(counts), layers.total)
    work = np.zeros(len(counts))
    types = counts.shape[1]
    for segment in np.argsort(slopes, kind="stable"):
        kind = int(segment) % types
        count = counts[:, kind]
        free = found.free[kind, place, count]
        room = free
        if segment >= types:
            room = found.summed[kind, place, count] - free
        else:
            at_first = found.first[kind, place, stages - 1] - found.inner[kind, place, stages - 1]
            at_last = found.last[kind, place] - found.inner[kind, place, 0]
            for more in (at_first, at_last):
                room = room + np.where((count > 0) & (more < -IMPOSSIBLE / 2), np.maximum(more, 0.0), 0.0)
        taken = np.minimum(left, np.maximum(room, 0.0))
        work += slopes[segment] * taken
        left -= taken
    work += counts @ (2.0 * table.each) + 2.0 * least_moves(table, counts)
    for edge in (layers.first_seconds, layers.last_seconds):
        work += np.where(counts > 0, edge, np.inf).min(axis=1)
    return work


def least_moves(table: Table, counts: Ints) -> Floats:
    """Return the least seconds of all messages of one micro-batch one way, [N]: between units of a machine as long as
    it has some, and across machines where the type changes, at the speed of the slower of two types."""
    inside = np.maximum(counts - 1, 0)
    across = np.minimum(np.maximum(-(-counts // table.local) - 1, 0), inside)
    near = np.minimum(table.near, table.far)
    moves = (inside - across) @ near + across @ table.far
    ordered = np.sort(np.where(counts > 0, table.far, np.inf), axis=1)
    changes = (counts > 0).sum(axis=1) - 1
    if counts.shape[1] > 1:
        moves = moves + np.where(changes > 0, changes * np.where(changes > 0, ordered[:, 1], 0.0), 0.0)
    return np.asarray(moves)


def forward_share(table: Table, layers: Layers, counts: Ints) -> Floats:
    """Return the greatest part of a stage's time that its forward pass can be, [N]: that of a single layer."""
    moves = np.maximum(table.near, table.far)
    share = (layers.forward + table.each + moves) / (layers.seconds + 2.0 * (table.each + moves))
    return np.asarray(np.where(counts > 0, np.maximum(share, 0.36), 0.0).max(axis=1))


def after(table: Table, layers: Layers, counts: Ints, region: Region) -> Floats:
    """Return the seconds after the pipeline that no split avoids, infinite where the region has less: the optimizer
    step, and what the framework does."""
    speed = counts @ (1.0 / np.maximum(table.update_seconds, 1e-300))
    ends = layers.first_parameters + layers.last_parameters - table.tied_parameters * (counts.sum(axis=1) == 1)[:, None]
    parameters = layers.total * (layers.dense + layers.expert).min() + ends.min(axis=1)
    once = np.where(counts > 0, table.step_seconds, 0.0).max(axis=1)
    tied = np.where(counts > 0, table.tied_seconds(counts.sum(axis=1)), np.inf).min(axis=1)
    least = parameters / speed / region.most + once + tied
    return np.where(least <= region.most_after, np.maximum(least, region.least_after), np.inf)


def longest_after(table: Table, layers: Layers, region: Region) -> float:
    """Return the seconds that none of the columns of a region has more of after the pipeline, if gradients and weights
    take none."""
    parameters = layers.total * (layers.dense + layers.expert) + layers.first_parameters + layers.last_parameters
    there = table.units > 0
    tied = np.maximum(table.tied_near, table.tied_far)
    least = parameters * table.update_seconds / region.most
    return max(float(least[there].max() + table.step_seconds[there].max() + tied[there].max()), region.least_after)


def micro_batches(found: Columns, seconds: float | Floats) -> Ints:
    """Return the most micro-batches that a replica of each composition finishes within `seconds` (or [N]), [N]."""
    t = (seconds - found.after)[:, None]
    tau, work, stages = found.bottleneck, found.work, found.stages[:, None].astype(np.float64)
    give = np.minimum(stages * tau - work, (stages - 1.0) * tau / 2.0)
    many = np.minimum(1.0 + (t - work + np.maximum(give, 0.0)) / tau, t / tau)
    many = np.minimum(many, 1.0 + stages * (t / work - 1.0))
    few = np.minimum(1.0 + (t - work) / ((1.0 - found.share)[:, None] * tau), t / tau)
    count = np.where(many >= stages + 1.0, many, np.minimum(few, stages))
    count = np.where(t >= work, count, 0.0)
    single = found.stages == 1
    best = count.max(axis=1)
    best = np.where(single, (t / tau)[:, 0], best)
    best = np.floor(np.minimum(np.maximum(best, 0.0), found.most) + 1e-9)
    return np.asarray(np.where(best >= found.fewest, best, 0.0), dtype=np.int64)
