"""What the stages of given pipelines take: seconds, recomputation and memory, for many layer splits at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Bools, Columns, Floats, Ints, distinct
from shardwright.cost.frameworks.overheads import BACKWARD_LAUNCHES, launched_seconds
from shardwright.cost.network.collectives import Group, exposed_seconds, gather_seconds
from shardwright.cost.pipeline.schedule import one_f_one_b
from shardwright.cost.pipeline.simulate import simulate
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM
from shardwright.search.mixed.tables.columns import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTimes(Columns):
    """N splits of a pipeline of P stages, [N, P] each: seconds of a micro-batch (`own_backward` without recomputation),
    the recomputation (code and layers) that fits and is fastest, parameters held, seconds that Muon's products take one
    copy, and whether all of a split fits."""

    forward: Floats
    backward: Floats
    own_backward: Floats
    recompute: Ints
    recompute_layers: Ints
    parameters: Floats
    orthogonal: Floats
    fits: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageRanges:
    """R stages, [R] each: their type, layers `begin` to `end`, and micro-batches in flight; `staged` says that each has
    neighbours. The first has the embedding, the last the head."""

    kinds: Ints
    begin: Ints
    end: Ints
    flight: Ints
    staged: bool
    layers: int

    @property
    def last(self) -> Bools:
        return np.asarray(self.end == self.layers)

    def held(self, running: Floats) -> Floats:
        """Return the sum over all positions of each stage."""
        row, flat = self.kinds * (self.layers + 3), running.ravel()
        low = np.where(self.begin > 0, self.begin + 1, 0)
        high = self.end + 1 + self.last
        return np.asarray(flat.take(row + high) - flat.take(row + low))

    def middle(self, running: Floats) -> Floats:
        """Return the sum over the layers of each stage."""
        row, flat = self.kinds * (self.layers + 3) + 1, running.ravel()
        return np.asarray(flat.take(row + self.end) - flat.take(row + self.begin))


def stages(
    table: Table, kinds: Ints, starts: Ints, *, micro_batches: int, copies: int, modes: tuple[int, ...]
) -> SplitTimes:
    """Return the stages of splits `starts` [N, P + 1] on types `kinds`, [P] or [N, P]."""
    shape = starts.shape[0], starts.shape[1] - 1
    flight = np.minimum(micro_batches, shape[1] - np.arange(shape[1]))
    found = lone_stages(
        table,
        np.broadcast_to(kinds, shape).ravel(),
        starts[:, :-1].ravel(),
        starts[:, 1:].ravel(),
        np.broadcast_to(flight, shape).ravel(),
        staged=shape[1] > 1,
        copies=copies,
        modes=modes,
    )
    columns = {name: getattr(found, name).reshape(shape) for name in SplitTimes.__slots__}
    return SplitTimes(**columns | {"fits": columns["fits"].all(axis=1)})


def lone_stages(
    table: Table,
    kinds: Ints,
    begin: Ints,
    end: Ints,
    flight: Ints,
    *,
    staged: bool,
    copies: int,
    modes: tuple[int, ...],
) -> SplitTimes:
    """Return stages of whatever pipelines, [R] each: on types `kinds`, with layers `begin` to `end` and `flight`
    micro-batches in flight; `staged` says that each has neighbours."""
    of = _StageRanges(kinds=kinds, begin=begin, end=end, flight=flight, staged=staged, layers=table.layers)
    each = table.each[kinds]
    host = (end - begin) * (table.host[kinds] if staged else 0.0)
    forward = launched_seconds(of.held(table.forward), host)
    parameters = of.held(table.dense) + of.held(table.expert)
    if not staged:
        parameters = parameters - table.tied_parameters[kinds]
    each_bytes, end_bytes = (of_type[kinds] for of_type in table.kept_bytes(copies))
    ends = parameters - of.middle(table.dense) - of.middle(table.expert)
    room = (table.room_bytes - table.fixed_bytes - (table.staged_bytes if staged else 0.0))[kinds]
    room = room - each_bytes * parameters - (end_bytes - each_bytes) * ends
    room = room - np.where(of.last, table.head_bytes[kinds], 0.0)
    kept = of.held(table.activations) * flight
    spare, zeros = kept <= room, np.zeros_like(begin)
    options: list[tuple[int, Floats, Ints]] = []
    if NONE in modes:
        options.append((NONE, np.where(spare, 0.0, np.inf), zeros))
    if NONE not in modes or not spare.all():
        if SELECTIVE in modes:
            lean = kept - of.held(table.core_bytes) * flight
            options.append((SELECTIVE, np.where(lean <= room, of.held(table.core), np.inf), zeros))
        if BLOCK in modes:
            wanted = np.flatnonzero(~spare) if NONE in modes else np.arange(len(spare))
            options.append((BLOCK, *_block(table, of, kept - room + _again(table, of, 1), wanted)))
        if UNIFORM in modes:
            options.append((UNIFORM, *_uniform(table, of, kept - room)))
    seconds = np.stack([option[1] for option in options])
    best = seconds.argmin(axis=0)
    recompute = np.take_along_axis(seconds, best[None], axis=0)[0]
    layers = np.take_along_axis(np.stack([option[2] for option in options]), best[None], axis=0)[0]
    fits = np.isfinite(recompute)
    again = np.where(fits, recompute, 0.0)
    backward = launched_seconds(of.held(table.backward) + again, BACKWARD_LAUNCHES * host) + each
    return SplitTimes(
        forward=forward + each,
        backward=backward,
        own_backward=backward - again,
        recompute=np.array([option[0] for option in options])[best],
        recompute_layers=layers,
        parameters=parameters,
        orthogonal=of.middle(table.orthogonal),
        fits=fits,
    )


def _block(table: Table, of: _StageRanges, over: Floats, wanted: Ints) -> tuple[Floats, Ints]:
    """Return the seconds of recomputing the fewest layers of each stage that is `wanted`, the first ones, which free
    the bytes that it is `over` its memory (infinite where all do not), and their number."""
    row = (of.kinds[wanted] * (of.layers + 3)) + 1
    begin, end = row + of.begin[wanted], row + of.end[wanted]
    kept = (table.activations - table.inputs).ravel()
    before, each, over = kept.take(begin), of.flight[wanted], over[wanted]

    def enough(count: Ints) -> Bools:
        return np.asarray(each * (kept.take(np.minimum(begin + count, end)) - before) >= over)

    low, high = np.ones_like(begin), np.maximum(end - begin, 1)
    possible = enough(high)
    while (low < high).any():
        middle = (low + high) // 2
        more = enough(middle)
        high, low = np.where(more, middle, high), np.where(more, low, np.minimum(middle + 1, high))
    running = table.forward.ravel()
    taken = running.take(np.minimum(begin + high, end)) - running.take(begin)
    seconds, count = np.full(len(of.begin), np.inf), np.ones_like(of.begin)
    seconds[wanted], count[wanted] = np.where(possible, taken, np.inf), high
    return seconds, count


def _again(table: Table, of: _StageRanges, group: int) -> Floats:
    """Return the bytes that recomputing a group of layers at a time adds to stages: on the last one beyond the logits,
    with which they alternate."""
    again = group * table.again_bytes[of.kinds]
    return np.where(of.last, np.maximum(again - table.head_bytes[of.kinds], 0.0), again)


def _uniform(table: Table, of: _StageRanges, over: Floats) -> tuple[Floats, Ints]:
    """Return the seconds of recomputing all layers of each stage in groups, of which the inputs are kept (infinite
    where no size of them frees the bytes that a stage is `over` its memory), and the smallest size that does."""
    count = of.end - of.begin
    activations, inputs = of.middle(table.activations), of.middle(table.inputs)
    sizes = np.zeros_like(count)
    for size in range(1, int(count.max()) + 1):
        if not ((sizes == 0) & (size <= count)).any():
            break
        kept = inputs * -(-count // size) / np.maximum(count, 1)
        enough = (activations - kept) * of.flight >= over + _again(table, of, size)
        sizes = np.where((sizes == 0) & (size <= count) & enough, size, sizes)
    return np.where(sizes > 0, of.middle(table.forward), np.inf), sizes


def pipeline_seconds(found: SplitTimes, moves: Floats, micro_batches: int) -> Floats:
    """Return the exact seconds of all micro-batches through each split, [N]; messages, [P - 1] or [N, P - 1],
    block their senders."""
    depth = found.forward.shape[1]
    if depth == 1:
        return np.asarray(micro_batches * (found.forward + found.backward)[:, 0])
    order = one_f_one_b(depth, micro_batches)
    waits = np.broadcast_to(moves, (len(found.forward), depth - 1))
    return simulate(order, found.forward, found.backward, waits, blocking=True).makespan_seconds


def update_seconds(table: Table, kinds: Ints, found: SplitTimes, copies: int) -> Floats:
    """Return the seconds of the optimizer step of each stage, [N, P]."""
    return np.asarray(found.parameters * table.updates(copies)[kinds] + found.orthogonal / copies)


def after_seconds(table: Table, kinds: Ints, found: SplitTimes, copies: int, slowest: int | None) -> Floats:
    """Return an estimate of what gradients, weights and the optimizer add after the pipeline, [N], where the stages are
    on types `kinds`, [P] or [N, P]: the links of the type `slowest` join all copies of a stage (None: those of its own
    type), as many in a domain as can be."""
    update = update_seconds(table, kinds, found, copies).max(axis=1)
    update = update + table.tied_between(kinds, kinds.shape[-1])
    if copies == 1:
        return np.asarray(update)
    once, places = np.zeros_like(found.parameters), np.broadcast_to(kinds, found.parameters.shape)
    for kind in distinct(kinds):
        here = places == kind
        part = found.parameters[here]
        groups = Group(size=np.full(part.shape, copies), local=np.full(part.shape, min(int(table.local[kind]), copies)))
        once[here] = gather_seconds(table.links_seen(kind, () if slowest is None else (slowest,)), groups, part)
    reduce, gather = tails(table, found, once)
    return np.asarray(reduce.max(axis=1) + gather.max(axis=1) + update)


def tails(table: Table, found: SplitTimes, once: Floats) -> tuple[Floats, Floats]:
    """Return what reducing gradients and gathering weights leave after the pipeline at each stage, [N, P], where a byte
    of each of its parameters is gathered in `once` seconds [N, P]."""
    backward, forward = table.reduced_beside * found.own_backward, table.gathered_beside * found.forward
    reduce = exposed_seconds(table.reduced_bytes * once, backward)
    gather = exposed_seconds(table.gathered_bytes * once, forward)
    return (
        np.maximum(reduce - _before(found.own_backward), 0.0),
        np.maximum(gather - _before(found.forward), 0.0),
    )


def _before(values: Floats) -> Floats:
    return np.asarray(np.cumsum(values, axis=1) - values)
