"""How many layers a stage takes within a time and its memory, with the recomputation that serves it best."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Bools, Columns, Floats, Ints
from shardwright.cost.stage import relaxed
from shardwright.cost.stage.relaxed import SLACK, LeastLayer
from shardwright.search.mixed.tables.columns import Layers, Table

IMPOSSIBLE = -1e7  # layers of a stage that cannot hold one: no sum with it reaches the model's


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(Columns):
    """A `layer` on each of R types or stages and its `state` bytes; bytes for all (`room`), of which some live `beside`
    under each mode [R, 4]; seconds that come with a stage, and with its ends; bytes that its ends add, once and for
    each micro-batch, [R] each."""

    layer: LeastLayer
    state: Floats
    room: Floats
    beside: Floats
    last_beside: Floats
    overhead: Floats
    move: Floats
    first_seconds: Floats
    last_seconds: Floats
    first_held: Floats
    first_bytes: Floats
    last_held: Floats


def figures(table: Table, layers: Layers, copies: int) -> Figures:
    """Return the figures of every type in a pipeline, where `copies` replicas share the optimizer state."""
    each, more = table.kept_bytes(copies)
    move = least_move_seconds(table)
    return Figures(
        layer=layers.least,
        state=(layers.dense + layers.expert) * each,
        room=table.rooms(staged=True),
        beside=table.beside(last=False),
        last_beside=table.beside(last=True),
        overhead=2.0 * (table.each + move),
        move=move,
        first_seconds=layers.first_seconds,
        last_seconds=layers.last_seconds,
        first_held=each * layers.first_parameters + more * layers.first_ends,
        first_bytes=layers.first_bytes,
        last_held=each * layers.last_parameters + more * layers.last_ends + layers.last_bytes,
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
    micro-batches in flight, and the most without recomputation."""
    most, free = relaxed.most_layers(of.layer, modes, left, space, of.state, of.beside, flight)
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
        beside=np.where(ends[:, None], of.last_beside, of.beside),
    )


def stage_layers(of: Figures, flight: Floats, seconds: Floats, modes: tuple[int, ...], layers: Layers) -> Floats:
    """Return the layers that each stage [P] of a pipeline of two or more takes within `seconds` [J], as [J, P]."""
    place = np.arange(len(flight))
    of = with_ends(of, flight, place == 0, place == len(flight) - 1)
    left = seconds[None, :] - of.overhead[:, None]
    most, _ = most_layers(of, left, of.room[:, None], flight[:, None], modes, layers)
    return np.asarray(most[:, :, 0].T)
