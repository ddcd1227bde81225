"""Good layer splits of a composition: the order of its types and the layers of every stage."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from shardwright.cost.collectives import Fabric
from shardwright.cost.strategy import Floats, Ints
from shardwright.search.mixed.stage_limits import figures, stage_layers
from shardwright.search.mixed.stages import Stages, after_seconds, pipeline_seconds, stages
from shardwright.search.mixed.tables import Layers, Table
from shardwright.search.mixed.travel import layers_in_time

TRIED = 24  # bottleneck times for each order
WIDEST = 1.25  # the longest of them, as a multiple of the least
MOST_ORDERS = 24
ROUNDS, POINTS = 3, 48  # of the search for the least bottleneck


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One pipeline: types of its stages [P], where each starts [P + 1], recomputation, and what was found of it."""

    kinds: tuple[int, ...]
    starts: tuple[int, ...]
    recompute: tuple[tuple[int, int], ...]
    seconds: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a pipeline is costed in: copies of the model, the recomputations allowed, the links that join copies
    of a stage (None: those of its type), and the seconds that gradients and weights may take after the pipeline."""

    copies: int
    modes: tuple[int, ...]
    links: Fabric | None
    most_after: float


def retimed(table: Table, line: Line, micro_batches: int, around: Surroundings) -> Line | None:
    """Return the same split with another number of micro-batches, or None if that does not fit."""
    kinds, starts = np.array(line.kinds), np.array([line.starts])
    found = stages(table, kinds, starts, micro_batches=micro_batches, copies=around.copies, modes=around.modes)
    if not found.fits[0]:
        return None
    seconds = pipeline_seconds(found, moves_of(table, kinds), micro_batches)
    after = after_seconds(table, kinds, found, around.copies, around.links)
    return _line(kinds, starts[0], found, 0, float(seconds[0]), float(after[0]))


def best_line(table: Table, layers: Layers, counts: Ints, micro_batches: int, around: Surroundings) -> Line | None:
    """Return the best pipeline found for a composition, or None if none fits."""
    best: Line | None = None
    present = [kind for kind in range(len(counts)) if counts[kind]]
    for order in list(permutations(present))[:MOST_ORDERS]:
        kinds = np.repeat(np.array(order), counts[list(order)])
        found = _best_split(table, layers, kinds, micro_batches, around)
        if found is not None and (best is None or _worth(found, around) < _worth(best, around)):
            best = found
    return best


def _worth(line: Line, around: Surroundings) -> float:
    if np.isfinite(around.most_after):
        return line.seconds + max(line.after - around.most_after, 0.0)
    return line.seconds + line.after


def _best_split(table: Table, layers: Layers, kinds: Ints, micro_batches: int, around: Surroundings) -> Line | None:
    starts = candidates(table, layers, kinds, micro_batches, around)
    if not len(starts):
        return None
    found = stages(table, kinds, starts, micro_batches=micro_batches, copies=around.copies, modes=around.modes)
    fitting = np.flatnonzero(found.fits)
    if not len(fitting):
        return None
    found, starts = found.take(fitting), starts[fitting]
    seconds = pipeline_seconds(found, moves_of(table, kinds), micro_batches)
    after = after_seconds(table, kinds, found, around.copies, around.links)
    late = np.maximum(after - around.most_after, 0.0) if np.isfinite(around.most_after) else after
    place = int(np.argmin(seconds + late))
    return _line(kinds, starts[place], found, place, float(seconds[place]), float(after[place]))


def _line(kinds: Ints, starts: Ints, found: Stages, place: int, seconds: float, after: float) -> Line:
    recompute = zip(found.recompute[place].tolist(), found.recompute_layers[place].tolist(), strict=True)
    return Line(
        kinds=tuple(kinds.tolist()),
        starts=tuple(starts.tolist()),
        recompute=tuple(recompute),
        seconds=seconds,
        after=after,
    )


def moves_of(table: Table, kinds: Ints) -> Floats:
    """Return the seconds of a message between neighbours, [P - 1]: of one type in one domain as long as it lasts."""
    moves = []
    at: dict[int, int] = {}
    for here, there in zip(kinds[:-1].tolist(), kinds[1:].tolist(), strict=True):
        at[here] = at.get(here, 0) + 1
        if here != there:
            moves.append(max(float(table.far[here]), float(table.far[there])))
        else:
            crosses = at[here] % int(table.local[here]) == 0
            moves.append(float((table.far if crosses else table.near)[here]))
    return np.array(moves)


def candidates(table: Table, layers: Layers, kinds: Ints, micro_batches: int, around: Surroundings) -> Ints:
    """Return splits worth a simulation, [N, P + 1]: for several bottlenecks, those that fill stages up to it and take
    what is too much away from the slowest, from the first, or from the last."""
    depth, total = len(kinds), table.layers
    if depth == 1:
        return np.array([[0, total]])
    if depth > total:
        return np.zeros((0, depth + 1), dtype=np.int64)
    flight = np.minimum(micro_batches, depth - np.arange(depth)).astype(np.float64)

    of = figures(table, layers, around.copies).take(kinds)

    def room(seconds: Floats) -> Ints:
        most = stage_layers(of, flight, seconds, around.modes, layers)
        if np.isfinite(around.most_after):
            travelled, at_first, at_last = layers_in_time(
                table,
                layers,
                seconds,
                depth,
                copies=(around.copies, around.copies),
                most_after=around.most_after,
                link=around.links.inter_bytes_per_second if around.links else np.inf,
            )
            limits = travelled[kinds, :, np.arange(depth)].T.copy()
            limits[:, 0], limits[:, -1] = at_first[kinds[0]], at_last[kinds[-1], :, -1]
            most = np.minimum(most, limits)
        return np.floor(np.clip(most, 0.0, total) + 1e-9).astype(np.int64)

    share = layers.total / (1.0 / layers.seconds[kinds]).sum()
    low, high = 0.5 * share, 64.0 * share
    for _ in range(ROUNDS):
        seconds = np.geomspace(low, high, POINTS)
        caps = room(seconds)
        enough = (caps >= 1).all(axis=1) & (caps.sum(axis=1) >= total)
        if not enough.any():
            return np.zeros((0, depth + 1), dtype=np.int64)
        place = int(enough.argmax())
        low, high = float(seconds[max(place - 1, 0)]), float(seconds[place])
    caps = room(np.geomspace(high, high * WIDEST, TRIED))
    slow = np.argsort(-layers.seconds[kinds], kind="stable")
    orders = (slow, np.arange(depth), np.arange(depth)[::-1])
    counts = [_reduced(caps, order, total) for order in orders]
    counts.append(_levelled(caps, total))
    found = np.unique(np.concatenate(counts), axis=0)
    starts = np.zeros((len(found), depth + 1), dtype=np.int64)
    np.cumsum(found, axis=1, out=starts[:, 1:])
    return starts


def _reduced(caps: Ints, order: Ints, total: int) -> Ints:
    """Return caps less the surplus, taken from the stages in `order`, each left with a layer at least."""
    found = caps.copy()
    surplus = caps.sum(axis=1) - total
    for stage in order:
        taken = np.minimum(surplus, found[:, stage] - 1)
        found[:, stage] -= taken
        surplus = surplus - taken
    return found


def _levelled(caps: Ints, total: int) -> Ints:
    """Return caps less the surplus, taken from all stages in turn, first stages first."""
    found = caps.copy()
    surplus = caps.sum(axis=1) - total
    while (surplus > 0).any():
        for stage in range(caps.shape[1]):
            take = (surplus > 0) & (found[:, stage] > 1)
            found[:, stage] -= take
            surplus = surplus - take
    return found
