"""What stages take, exactly: layers, bytes kept, seconds repeated, and the recomputation that fits.

Stages are `Ranges` of any shape; `mode` (codes of `cost.strategies`) and `count` (Megatron-LM's
--recompute-num-layers) broadcast to it.

Running sums [M, L + 3] go over the positions of a model: the embedding 0, layers from 1, the head last; those of states
[M, 3, L + 3] have one for each state of a layer (`terms`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

import numpy as np

from shardwright.arrays import Array, Bools, Columns, Floats, Ints, distinct, least_enough
from shardwright.cost.network.collectives import exposed_seconds
from shardwright.cost.stage.terms import AGAIN, FIRST, GROUPED, LEAN, REST, STATES
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM
from shardwright.records import record


@record
class Ranges(Columns):
    """Stages in an array of any shape: the row of each in layer tables, its positions from `low` to `high`, and those
    of its layers alone, `begin` to `end`."""

    row: Ints
    low: Ints
    high: Ints
    begin: Ints
    end: Ints

    @property
    def length(self) -> Ints:
        """The layers of each stage."""
        return self.end - self.begin

    def total(self, running: Floats, state: Array | int | None = None) -> Floats:
        """Return the sum over all positions."""
        return _between(running, self.row, self.low, self.high, state)

    def layers(self, running: Floats, state: Array | int | None = None) -> Floats:
        """Return the sum over the layers."""
        return _between(running, self.row, self.begin, self.end, state)

    def first(self, running: Floats, count: Array | int, state: Array | int | None = None) -> Floats:
        """Return the sum over the first `count` layers, over all where there are fewer."""
        return _between(running, self.row, self.begin, np.minimum(self.begin + count, self.end), state)


def of_pipelines(row: Ints, starts: Ints, layers: int) -> Ranges:
    """Return the virtual stages [N, V] of pipelines whose layers, those of row `row` [N], start at `starts` [N, V + 1].
    The first stage has the embedding, the last the head."""
    where = starts + 1
    low, high = where[:, :-1].copy(), where[:, 1:].copy()
    low[:, 0], high[:, -1] = 0, layers + 2
    return Ranges(
        row=np.broadcast_to(row[:, None], low.shape), low=low, high=high, begin=where[:, :-1], end=where[:, 1:]
    )


def of_stages(row: Ints, begin: Ints, end: Ints, layers: int) -> tuple[Ranges, Bools]:
    """Return stages of whatever pipelines, [R], with layers `begin` to `end`, one or more, and which have the head.
    What begins with the first layer has the embedding, what ends with the last the head."""
    last = end == layers
    low = np.where(begin > 0, begin + 1, 0)
    return Ranges(row=row, low=low, high=end + 1 + last, begin=begin + 1, end=end + 1), np.asarray(last)


def per_rank(values: Array, virtual_stages: int) -> Array:
    """Return per-virtual-stage values [N, v * P] as [N, v, P]."""
    return values.reshape(len(values), virtual_stages, -1)


def _between(running: Floats, row: Ints, low: Ints, high: Ints, state: Array | int | None) -> Floats:
    flat, row = running.reshape(-1), row if state is None else row * STATES + state
    row = row * running.shape[-1]
    return np.asarray(flat.take(row + high) - flat.take(row + low))


def kept_bytes(kept: Floats, stages: Ranges, mode: Array | int, count: Array | int) -> Floats:
    """Return the bytes that one micro-batch leaves on each stage until its backward pass; `kept` [M, 3, L + 3] are
    running sums by state."""
    first, rest, grouped = FIRST[mode], REST[mode], GROUPED[mode]
    total, differ = stages.total(kept, rest), first != rest
    if np.any(differ):
        some = np.where(differ, count, 0)
        total = total - (stages.first(kept, some, rest) - stages.first(kept, some, first))
    if np.any(grouped):
        inputs, length = stages.layers(kept, AGAIN), np.maximum(stages.length, 1)
        total = total - np.where(grouped, inputs - inputs * (-(-length // np.maximum(count, 1))) / length, 0.0)
    return np.asarray(total)


def last_kept_bytes(kept: Floats, stages: Ranges, mode: Array | int, count: Array | int) -> Floats:
    """Return what the last layer of each stage leaves of that, none where it runs again, as its input stays; `kept` as
    in `kept_bytes`."""
    again = GROUPED[mode] | ((FIRST[mode] == AGAIN) & (count >= stages.length))
    last = replace(stages, begin=np.maximum(stages.end - 1, stages.begin))
    return np.asarray(np.where(again, 0.0, last.layers(kept, REST[mode])))


def in_host_bytes(offloaded: Floats, stages: Ranges, mode: Array | int, count: Array | int) -> Floats:
    """Return the bytes of host memory that one micro-batch takes until its backward pass: the inputs of layers that run
    again, of a group those of its first. `offloaded` are running sums [M, L + 3]."""
    grouped, length = GROUPED[mode], np.maximum(stages.length, 1)
    inputs = stages.first(offloaded, np.where(FIRST[mode] == AGAIN, np.where(grouped, length, count), 0))
    return np.asarray(np.where(grouped, inputs * (-(-length // np.maximum(count, 1))) / length, inputs))


def live_bytes(
    live: Floats, group: Floats, row: Ints, mode: Array | int, count: Array | int, longest: Array | int
) -> Floats:
    """Return the bytes that live beside what is kept while a layer runs backward, of stages with the rows `row` of
    tables: `live` [M, 3] by state, `group` [M] for each layer that runs again together, up to the `longest` of a rank's
    stages; a rank without layers may have one of multi-token prediction."""
    together = np.where(GROUPED[mode], np.minimum(count, np.maximum(longest, 1)), FIRST[mode] == AGAIN)
    return np.asarray(group[row] * together + live[row, FIRST[mode]])


def repeated_seconds(
    forward: Floats, core: Floats, tower: Floats, stages: Ranges, mode: Array | int, count: Array | int
) -> Floats:
    """Return the seconds of a backward pass that run again: of whole layers, or of what selective recomputation repeats
    (`core`). Both are running sums [M, L + 3]. Where all layers run again, those of a `tower` [M] do on the first
    stage."""
    first, count = FIRST[mode], np.where(GROUPED[mode], stages.length, count)
    seconds = stages.first(forward, np.where(first == AGAIN, count, 0))
    if np.any(first == LEAN):
        seconds = seconds + np.where(first == LEAN, stages.total(core), 0.0)
    if tower.any():
        seconds = seconds + np.where(GROUPED[mode] & (stages.low == 0), tower[stages.row], 0.0)
    return seconds


def left_over(travelling: Floats, passes: Floats, share: Array | float, first: Floats) -> Floats:
    """Return what `travelling` seconds of each rank leave after the pipeline, [N, P], where they run beside a `share`
    of its own `passes`, and then beside those of the ranks before it, `first` of each, which end later (begin earlier).
    """
    before = np.cumsum(first, axis=1) - first
    return np.asarray(np.maximum(exposed_seconds(travelling, share * passes) - before, 0.0))


def fewest_layers(most: Ints, fits: Callable[[Ints], Bools]) -> tuple[Ints, Bools]:
    """Return, for each of N, the least number of layers from 1 to `most` whose recomputation `fits`, and whether any
    does. Memory falls with the number."""
    most = np.maximum(most, 1)
    possible = fits(most)
    return least_enough(np.ones_like(most), np.where(possible, most, 1), fits), possible


def leanest_group(lengths: Ints, alone: bool, needed: Callable[[Ints], Floats]) -> tuple[Ints, Floats]:
    """Return, for each of N, the size of the groups that run again together with which least is `needed`, the smallest
    of equals, and what that is. `lengths` are those of the stages; with `alone` a group is a layer."""
    counts = [] if alone else distinct(lengths).tolist()
    # Of all sizes that make equally many groups of a stage, the least is the leanest.
    sizes = sorted({-(-length // groups) for length in counts for groups in range(1, length + 1)} | {1})
    best = np.ones(len(lengths), dtype=np.int64)
    least = np.full(len(lengths), np.inf)
    for size in sizes:
        bytes_needed = needed(np.full(len(lengths), size, dtype=np.int64))
        best = np.where(bytes_needed < least, size, best)
        least = np.minimum(bytes_needed, least)
    return best, least


class LayerFigures(Protocol):
    """Of M tables of layers: running sums of forward seconds and of what selective recomputation repeats of them, the
    seconds of a tower that run again, running sums of bytes kept by state and offloaded, and what lives beside those
    (`live_bytes`)."""

    @property
    def forward(self) -> Floats: ...
    @property
    def core(self) -> Floats: ...
    @property
    def tower_again(self) -> Floats: ...
    @property
    def kept(self) -> Floats: ...
    @property
    def offloaded(self) -> Floats: ...
    @property
    def live(self) -> Floats: ...
    @property
    def group(self) -> Floats: ...


def fitting_recomputation(
    layers: LayerFigures,
    stages: Ranges,
    logits: Floats,
    flight: Ints,
    room: Floats,
    host_room: Floats,
    modes: Collection[int],
    *,
    alone: bool,
    first: Floats | None = None,
    bare: Floats | None = None,
) -> tuple[Floats, Ints, Ints]:
    """Return the least seconds that stages [R] of one chunk run again to keep what `flight` micro-batches leave within
    their `room` on the GPU, beside the working set of a layer or the `logits`, and within that in its host, infinite
    where they cannot; and the mode of `modes` and the number of layers that do it. With `alone` a group is a layer.
    When one of the micro-batches has run backward, `first` is there in its place, and `bare` when all have."""
    moments = np.stack([np.zeros(len(room)) if part is None else part for part in (first, bare)])
    seconds, count = np.full(len(room), np.inf), np.zeros(len(room), dtype=np.int64)
    code = np.full(len(room), next(iter(modes)))
    for mode in (mode for mode in (NONE, SELECTIVE, BLOCK, UNIFORM) if mode in modes):
        rows = np.flatnonzero(seconds > 0.0)
        if not len(rows):
            break
        part = stages.take(rows)
        rooms = room[rows], host_room[rows]
        of = logits[rows], moments[:, rows], flight[rows]
        number, needed = _leanest(layers, part, *of, *rooms, mode, alone=alone)
        again = repeated_seconds(layers.forward, layers.core, layers.tower_again, part, mode, number)
        again = np.where(needed <= room[rows], again, np.inf)
        better = again < seconds[rows]
        chosen = rows[better]
        seconds[chosen], code[chosen], count[chosen] = again[better], mode, number[better]
    return seconds, code, count


def _leanest(
    layers: LayerFigures,
    stages: Ranges,
    logits: Floats,
    moments: Floats,
    flight: Ints,
    room: Floats,
    host_room: Floats,
    mode: int,
    *,
    alone: bool,
) -> tuple[Ints, Floats]:
    """Return the number of layers with which stages under a mode stay within their `room` in least time, and the bytes
    that they need then, infinite where their inputs, if any, do not fit what is left of the host."""
    longest, offloads = stages.length, bool(layers.offloaded.any())

    def on_gpu(number: Ints) -> Floats:
        beside = np.maximum(live_bytes(layers.live, layers.group, stages.row, mode, number, longest), logits)
        kept = kept_bytes(layers.kept, stages, mode, number)
        return np.asarray(np.maximum(np.maximum(kept * flight + beside, kept * (flight - 1) + moments[0]), moments[1]))

    def needed(number: Ints) -> Floats:
        in_host = in_host_bytes(layers.offloaded, stages, mode, number) * flight if offloads else 0.0
        return np.where(in_host <= host_room, on_gpu(number), np.inf)

    if mode == BLOCK:  # more layers take more of the host
        number, _ = fewest_layers(longest, lambda number: on_gpu(number) <= room)
    elif mode == UNIFORM:
        return leanest_group(longest[:, None], alone, needed)
    else:
        number = np.zeros_like(longest)
    return number, needed(number)
