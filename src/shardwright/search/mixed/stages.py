"""What the stages of given pipelines take: seconds, recomputation and memory, for many layer splits at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.collectives import Fabric, Group, exposed_seconds, gather_seconds
from shardwright.cost.layers import OVERLAP_SLOWDOWN
from shardwright.cost.overheads import BACKWARD_LAUNCHES, launched_seconds
from shardwright.cost.pipeline import simulate
from shardwright.cost.schedule import one_f_one_b
from shardwright.cost.step import BUCKET_SHARE
from shardwright.cost.strategy import BLOCK, NONE, SELECTIVE, Bools, Floats, Ints
from shardwright.search.mixed.tables import Table
from shardwright.search.mixed.travel import GATHERED, REDUCED


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """N splits of a pipeline of P stages, [N, P] each: seconds of a micro-batch, the recomputation (code and layers)
    that fits and is fastest, parameters held, and whether all of a split fits."""

    forward: Floats
    backward: Floats
    own_backward: Floats
    recompute: Ints
    recompute_layers: Ints
    parameters: Floats
    fits: Bools

    def take(self, rows: Ints) -> Stages:
        return Stages(**{name: getattr(self, name)[rows] for name in self.__slots__})


def stages(
    table: Table, kinds: Ints, starts: Ints, *, micro_batches: int, copies: int, modes: tuple[int, ...]
) -> Stages:
    """Return the stages of splits `starts` [N, P + 1] on types `kinds` [P]."""
    depth = len(kinds)
    low, high = starts[:, :-1] + 1, starts[:, 1:] + 1
    low, high = low.copy(), high.copy()
    low[:, 0], high[:, -1] = 0, table.layers + 2
    row = np.broadcast_to(kinds, low.shape)

    def held(running: Floats, begin: Ints = low, end: Ints = high) -> Floats:
        return np.asarray(running[row, end] - running[row, begin])

    each = table.each[kinds]
    host = np.diff(starts, axis=1) * (table.host[kinds] if depth > 1 else 0.0)
    forward = launched_seconds(held(table.forward), host)
    flight = np.minimum(micro_batches, depth - np.arange(depth))
    parameters = held(table.dense) + held(table.expert)
    if depth == 1:
        parameters = parameters - table.tied_parameters
    per_parameter = (table.state_bytes + table.shared_bytes / copies)[kinds]
    room = (table.room_bytes - table.fixed_bytes - (table.staged_bytes if depth > 1 else 0.0))[kinds]
    room = room - per_parameter * parameters
    room[:, -1] -= np.maximum(table.logit_bytes - table.working_bytes, 0.0)[kinds[-1]]
    kept = held(table.activations) * flight
    options: list[tuple[int, Floats, Ints]] = []
    if NONE in modes:
        options.append((NONE, np.where(kept <= room, 0.0, np.inf), np.zeros_like(starts[:, 1:])))
    if SELECTIVE in modes:
        lean = kept - held(table.core_bytes) * flight
        seconds = np.where(lean <= room, held(table.core), np.inf)
        options.append((SELECTIVE, seconds, np.zeros_like(starts[:, 1:])))
    if BLOCK in modes:
        options.append(_block(table, row, starts, kept, room - table.again_bytes[kinds], flight))
    seconds = np.stack([option[1] for option in options])
    best = seconds.argmin(axis=0)
    recompute = np.take_along_axis(seconds, best[None], axis=0)[0]
    layers = np.take_along_axis(np.stack([option[2] for option in options]), best[None], axis=0)[0]
    fits = np.isfinite(recompute)
    again = np.where(fits, recompute, 0.0)
    backward = launched_seconds(held(table.backward) + again, BACKWARD_LAUNCHES * host) + each
    return Stages(
        forward=forward + each,
        backward=backward,
        own_backward=backward - again,
        recompute=np.array([option[0] for option in options])[best],
        recompute_layers=layers,
        parameters=parameters,
        fits=fits.all(axis=1),
    )


def _block(table: Table, row: Ints, starts: Ints, kept: Floats, room: Floats, flight: Ints) -> tuple[int, Floats, Ints]:
    """Return the fewest layers of each stage, the first ones, whose recomputation makes it fit, and its seconds."""
    low, high = np.ones_like(starts[:, 1:]), np.maximum(np.diff(starts, axis=1), 1)
    begin = starts[:, :-1] + 1

    def freed(count: Ints) -> Floats:
        end = np.minimum(begin + count, starts[:, 1:] + 1)
        gain = table.activations[row, end] - table.activations[row, begin]
        return np.asarray(flight * (gain - (table.inputs[row, end] - table.inputs[row, begin])))

    possible = kept - freed(high) <= room
    while (low < high).any():
        middle = (low + high) // 2
        enough = kept - freed(middle) <= room
        high, low = np.where(enough, middle, high), np.where(enough, low, np.minimum(middle + 1, high))
    end = np.minimum(begin + high, starts[:, 1:] + 1)
    seconds = table.forward[row, end] - table.forward[row, begin]
    return BLOCK, np.where(possible, seconds, np.inf), high


def pipeline_seconds(found: Stages, moves: Floats, micro_batches: int) -> Floats:
    """Return the exact seconds of all micro-batches through each split, [N]; messages [P - 1] block their senders."""
    depth = found.forward.shape[1]
    if depth == 1:
        return np.asarray(micro_batches * (found.forward + found.backward)[:, 0])
    order = one_f_one_b(depth, micro_batches)
    waits = np.broadcast_to(moves, (len(found.forward), depth - 1))
    return simulate(order, found.forward, found.backward, waits, blocking=True).makespan_seconds


def after_seconds(table: Table, kinds: Ints, found: Stages, copies: int, links: Fabric | None) -> Floats:
    """Return an estimate of what gradients, weights and the optimizer add after the pipeline, [N]: `links` join all
    copies of a stage (None: those of its type), as many in a domain as can be."""
    update = (found.parameters * table.update_seconds[kinds]).max(axis=1) / copies
    update = update + table.tied_seconds(len(kinds))[0, kinds[0]]
    if copies == 1:
        return np.asarray(update)
    once = np.zeros_like(found.parameters)
    for kind in np.unique(kinds):
        here = np.flatnonzero(kinds == kind)
        part = found.parameters[:, here]
        groups = Group(size=np.full(part.shape, copies), local=np.full(part.shape, min(int(table.local[kind]), copies)))
        once[:, here] = gather_seconds(links or table.fabrics[kind], groups, part)
    reduce, gather = tails(found, table.trained * once)
    return np.asarray(reduce.max(axis=1) + gather.max(axis=1) + update)


def tails(found: Stages, once: Floats) -> tuple[Floats, Floats]:
    """Return what reducing gradients and gathering weights leave after the pipeline at each stage, [N, P], where a byte
    of each of its parameters is gathered in `once` seconds [N, P]."""
    reduce = exposed_seconds(REDUCED * once, BUCKET_SHARE * found.own_backward, slowdown=OVERLAP_SLOWDOWN)
    gather = exposed_seconds(GATHERED * once, BUCKET_SHARE * found.forward, slowdown=OVERLAP_SLOWDOWN)
    return (
        np.maximum(reduce - _before(found.own_backward), 0.0),
        np.maximum(gather - _before(found.forward), 0.0),
    )


def _before(values: Floats) -> Floats:
    return np.asarray(np.cumsum(values, axis=1) - values)
