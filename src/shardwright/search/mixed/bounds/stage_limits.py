"""How many layers a stage takes within a time and its memory, with the recomputation that serves it best.

A stage with h micro-batches in flight takes k layers within tau seconds a micro-batch, where R is its room, t are the
seconds, s the state bytes and a the activation bytes of a layer:

* none: k <= tau / t and k (s + h a) <= R;
* selective: t and a of selective recomputation;
* block, n of k layers: k t + n r <= tau and k (s + h a) - n h (a - i) <= R', so with the least n
  k (t + q (s + h a)) <= tau + q R', q = r / (h (a - i)), and k (s + h i) <= R';
* uniform, groups of layers of which few inputs are kept (i = 0): k (t + r) <= tau and k s <= R'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Bools, Columns, Floats, Ints
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM
from shardwright.search.mixed.tables.columns import Layers, Table

IMPOSSIBLE = -1e7  # layers of a stage that cannot hold one: no sum with it reaches the model's
SLACK = 1e-9
BYTE = 1.0  # that recomputation of a layer saves at least: a price without end is no number


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(Columns):
    """A layer on each of R types or stages, [R] each: seconds, what recomputation adds, bytes in flight and of state;
    seconds that come with a stage, and with its ends; bytes that its ends add, once and for each micro-batch."""

    seconds: Floats
    recompute: Floats
    core: Floats
    kept: Floats
    lean: Floats
    inputs: Floats
    state: Floats
    again: Floats
    last_again: Floats
    room: Floats
    overhead: Floats
    move: Floats
    first_seconds: Floats
    last_seconds: Floats
    first_held: Floats
    first_bytes: Floats
    last_held: Floats


def figures(table: Table, layers: Layers, copies: int) -> Figures:
    """Return the figures of every type in a pipeline, where `copies` replicas share the optimizer state."""
    each, end = table.kept_bytes(copies)
    move = least_move_seconds(table)
    return Figures(
        seconds=layers.seconds,
        recompute=layers.recompute,
        core=layers.core,
        kept=layers.activations,
        lean=layers.activations - layers.core_bytes,
        inputs=layers.inputs,
        state=(layers.dense + layers.expert) * each,
        again=table.again_bytes,
        last_again=table.last_again_bytes,
        room=table.room_bytes - table.fixed_bytes - table.staged_bytes,
        overhead=2.0 * (table.each + move),
        move=move,
        first_seconds=layers.first_seconds,
        last_seconds=layers.last_seconds,
        first_held=end * layers.first_parameters,
        first_bytes=layers.first_bytes,
        last_held=end * layers.last_parameters + layers.last_bytes + table.head_bytes,
    )


def least_move_seconds(table: Table) -> Floats:
    """Return the least seconds of a message from a stage, [G]."""
    return np.where(table.local > 1, np.minimum(table.near, table.far), table.far)


def least_moves(table: Table, here: Ints, there: Ints) -> Floats:
    """Return the least seconds of messages between stages of types `here` and `there`, which follow each other."""
    return np.where(here == there, least_move_seconds(table)[here], np.maximum(table.far[here], table.far[there]))


def most_layers(
    of: Figures, left: Floats, space: Floats, flight: Floats, modes: tuple[int, ...], layers: Layers
) -> tuple[Floats, Floats]:
    """(P2) Return the most layers within `left` [R, J] seconds and `space` [R, H] bytes with `flight` [R, H]
    micro-batches in flight, and the most without recomputation, [R, J, H]."""
    left, space, h = np.maximum(left, 0.0)[:, :, None], space[:, None, :], flight[:, None, :]

    def column(values: Floats) -> Floats:
        return np.asarray(values[:, None, None])

    t, s = column(of.seconds), column(of.state)
    kept, lean, inputs = column(of.kept), column(of.lean), column(of.inputs)
    free = np.minimum(left / t, space / (s + h * kept))
    most = free if NONE in modes else np.zeros_like(free)
    if SELECTIVE in modes:
        most = np.maximum(most, np.minimum(left / (t + column(of.core)), space / (s + h * lean)))
    if BLOCK in modes:
        tight = space - column(of.again)
        price = column(of.recompute) / np.maximum(h * (kept - inputs), BYTE)
        block = np.minimum((left + price * tight) / (t + price * (s + h * kept)), tight / (s + h * inputs))
        most = np.maximum(most, np.minimum(block, left / t))
    if UNIFORM in modes:
        groups = (space - column(of.again)) / s
        most = np.maximum(most, np.minimum(left / (t + column(of.recompute)), groups))
    least = 1.0
    if layers.whole:
        most, free = np.floor(most + SLACK), np.floor(np.maximum(free, 0.0) + SLACK)
    else:
        least = float(layers.weight.min()) - SLACK
    most = np.where(most >= least, most, IMPOSSIBLE)
    return most, np.clip(free, 0.0, np.maximum(most, 0.0))


def with_ends(of: Figures, flight: Floats, begins: Bools, ends: Bools) -> Figures:
    """Return the figures of stages [R] of which some begin their pipelines and some end them, with what that adds."""
    return replace(
        of,
        overhead=of.overhead + begins * (of.first_seconds - of.move) + ends * (of.last_seconds - of.move),
        room=of.room - begins * (of.first_held + of.first_bytes * flight) - ends * of.last_held,
        again=np.where(ends, of.last_again, of.again),
    )


def stage_layers(of: Figures, flight: Floats, seconds: Floats, modes: tuple[int, ...], layers: Layers) -> Floats:
    """Return the layers that each stage [P] of a pipeline of two or more takes within `seconds` [J], as [J, P]."""
    place = np.arange(len(flight))
    of = with_ends(of, flight, place == 0, place == len(flight) - 1)
    left = seconds[None, :] - of.overhead[:, None]
    most, _ = most_layers(of, left, of.room[:, None], flight[:, None], modes, layers)
    return np.asarray(most[:, :, 0].T)
