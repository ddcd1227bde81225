"""How many layers one stage and the stages of any pipeline take within a bottleneck time, by type and position.

All figures are upper bounds, so that what the table says is impossible is impossible: where a part is not known
(copies that share the optimizer state, links that they use, neighbours), the best holds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.arrays import Bools, Columns, Floats, Ints, distinct
from shardwright.cost.layers.table import running_sums
from shardwright.cost.stage import relaxed
from shardwright.cost.stage.relaxed import SLACK, LeastLayer
from shardwright.cost.stage.terms import AGAIN
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.mixed.tables.columns import Layers, Table
from shardwright.search.mixed.tables.region import Region, messages_between_sites

FINENESS = 0.01  # relative distance of the times tried, beside those at which a stage takes one layer more
IMPOSSIBLE = -1e7  # layers of a stage that cannot hold one: no sum with it reaches the model's


@record
class Capacity:
    """Layers within each of J times.

    `seconds` [J] ascending. `inner` [G, J, H] is what a stage between the ends takes with 1 … H micro-batches in
    flight, `summed` [G, J, H + 1] its running sums, `free` those of what it takes without recomputation. `first`
    [G, J, H] is for the first stage with h in flight, `last` [G, J] for the last one. `steady` says that the
    micro-batches in flight limit nothing. Stages hold the `needed` layers of the model, and those with experts `alone`,
    where others have none: as if these were not there, for which the least layer says nothing of experts.
    """

    seconds: Floats
    inner: Floats
    summed: Floats
    free: Floats
    first: Floats
    last: Floats
    steady: bool
    needed: float
    alone: Capacity | None = None


def capacity(
    table: Table,
    layers: Layers,
    *,
    copies: int,
    depth: int,
    longest: float,
    few: bool,
    modes: tuple[int, ...],
    alone: tuple[Table, Layers] | None = None,
) -> Capacity:
    """Return the table for pipelines of up to `depth` stages with bottlenecks up to `longest` seconds, where `copies`
    replicas at most share the state. With `few`, no more than one micro-batch is in flight. `alone` are the layers with
    experts, where others have none."""
    of = figures(table, layers, copies)
    seconds = _times(table, layers, of, depth, longest)
    within = _within(table, layers, of, seconds, depth=depth, few=few, modes=modes)
    if alone is None:
        return within
    sparse = _within(*alone, figures(*alone, copies), seconds, depth=depth, few=few, modes=modes)
    # A stage may hold none of these.
    inner, first, last = (np.maximum(held, 0.0) for held in (sparse.inner, sparse.first, sparse.last))
    return replace(within, alone=replace(sparse, inner=inner, summed=running_sums(inner), first=first, last=last))


def _within(
    table: Table, layers: Layers, of: Figures, seconds: Floats, *, depth: int, few: bool, modes: tuple[int, ...]
) -> Capacity:
    """Return the layers within each of `seconds`."""
    flight = np.ones(depth) if few else np.arange(1, depth + 1, dtype=np.float64)
    flight = np.broadcast_to(flight, (table.types, depth))
    room = np.broadcast_to(of.room[:, None], flight.shape)

    def limits(of: Figures, space: Floats, in_flight: Floats, overhead: Floats) -> tuple[Floats, Floats]:
        return most_layers(of, seconds[None, :] - overhead[:, None], space, in_flight, modes, layers)

    inner, free = limits(of, room, flight, of.overhead)
    at_first = room - of.first_held[:, None] - of.first_bytes[:, None] * flight
    first, _ = limits(of, at_first, flight, of.overhead - of.move + of.first_seconds)
    at_last = (of.room - of.last_held)[:, None]
    with_head = replace(of, beside=of.last_beside)
    last, _ = limits(with_head, at_last, flight[:, :1], of.overhead - of.move + of.last_seconds)
    there = table.units > 0
    steady = all(bool((part[there, :, :1] == part[there]).all()) for part in (inner, first))
    return Capacity(
        seconds=seconds,
        inner=inner,
        summed=running_sums(inner),
        free=running_sums(free),
        first=first,
        last=last[:, :, 0],
        steady=steady,
        needed=layers.total - 1e-6,
    )


def _times(table: Table, layers: Layers, of: Figures, depth: int, longest: float) -> Floats:
    """Return the bottleneck times to try: those at which a stage between the ends takes one layer more, each with the
    time just before it, and enough between them."""
    there = table.units > 0
    t, offset = of.layer.seconds[there], of.overhead[there]
    low = 0.98 * t.min() * max(layers.total / depth, float(layers.weight.min()))
    high = (layers.total * (t + of.layer.again[there, AGAIN]) + offset).max()
    high = min(high + float((of.first_seconds + of.last_seconds)[there].max()), longest)
    low, high = coarse(low), coarse(max(high, 1.01 * low))  # as the grid is: its ends are within
    grid = coarse(np.geomspace(low, high, int(np.ceil(np.log(high / low) / FINENESS)) + 1))
    parts = [grid]
    if layers.whole:
        exact = (np.arange(1, len(layers.weight) + 1)[:, None] * t + offset).ravel()
        parts += [exact, exact * (1.0 - 4.0 * SLACK)]
    times = distinct(np.concatenate(parts))
    return np.asarray(times[(times >= low) & (times <= high)])


@record
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
    per_weight, more = table.kept_bytes(copies)
    move, (elsewhere, _) = least_move_seconds(table), table.elsewhere_bytes(copies)
    return Figures(
        layer=layers.least,
        state=(layers.weights * per_weight).sum(axis=0),
        room=table.rooms(staged=True),
        beside=table.beside(last=False),
        last_beside=table.beside(last=True),
        overhead=2.0 * (table.each + move),
        move=move,
        first_seconds=layers.first_seconds,
        last_seconds=layers.last_seconds,
        first_held=(per_weight * layers.first_weights).sum(axis=0) + more * layers.first_ends - elsewhere,
        first_bytes=layers.first_bytes,
        last_held=(per_weight * layers.last_weights).sum(axis=0)
        + (more * layers.last_ends - elsewhere + layers.last_bytes),
    )


def least_move_seconds(table: Table) -> Floats:
    """Return the least seconds of a message from a stage, [G]."""
    return np.where(table.local > 1, np.minimum(table.near, table.far), table.far)


def least_moves(table: Table, region: Region, here: Ints, there: Ints) -> Floats:
    """Return the least seconds of messages between stages of types `here` and `there`, which follow each other in
    pipelines of a region."""
    far, over = np.maximum(table.far[here], table.far[there]), messages_between_sites(table, region)[here, there]
    return np.where(here == there, least_move_seconds(table)[here], np.maximum(far, over))


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
