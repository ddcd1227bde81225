"""What no stage goes below whose layers are all at least like a given one: exact's terms with the least figures.

A stage with h micro-batches in flight takes k layers within tau seconds a micro-batch, where R is its room beside what
lives under a mode, t are the seconds, s the state bytes and a the activation bytes of a layer in its state:

* none, selective: k t <= tau and k (s + h a) <= R;
* block, n of k layers: k t + n r <= tau and k (s + h a) - n h (a - i) <= R, so with the least n
  k (t + q (s + h a)) <= tau + q R, q = r / (h (a - i)), and k (s + h i) <= R;
* uniform, groups of layers of which few inputs are kept (i = 0): k (t + r) <= tau and k s <= R.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Array, Columns, Floats, Ints
from shardwright.cost.stage.terms import AGAIN, LEAN, MODES, WHOLE
from shardwright.cost.strategies import BLOCK, NONE
from shardwright.records import record

BYTE = 1.0  # numeric: that recomputation of a layer saves at least: a price without end is no number
SLACK = 1e-9  # numeric: part of a room that rounding may take


@record
class LeastLayer(Columns):
    """The least figures of any layer of R stages: seconds [R], those that run again and bytes kept, by state [R, 3]."""

    seconds: Floats
    again: Floats
    kept: Floats


def again_by_state(core: Floats, whole: Floats) -> Floats:
    """Return the seconds of a layer that run again in each state, [R, 3]: none, of `core` or of the `whole` layer."""
    return np.stack([np.zeros_like(core), core, whole], axis=1)


def most_layers(
    layer: LeastLayer, modes: Sequence[int], left: Floats, room: Floats, state: Floats, beside: Floats, flight: Floats
) -> tuple[Floats, Floats]:
    """Return the most layers of stages [R], of `state` [R] bytes each, within `left` [R, J] seconds and `room` [R, H]
    bytes, of which `beside` [R, 4] live under each mode, with `flight` [R, H] micro-batches in flight, [R, J, H]; and
    the most without recomputation."""
    left, room, h = np.maximum(left, 0.0)[:, :, None], room[:, None, :], flight[:, None, :]
    t, s = layer.seconds[:, None, None], state[:, None, None]

    def alike(mode: int) -> Floats:
        inside = MODES[mode].first
        again, kept = (of_layer[:, inside, None, None] for of_layer in (layer.again, layer.kept))
        held = s + h * (0.0 if MODES[mode].grouped else kept)
        return np.asarray(np.minimum(left / (t + again), (room - beside[:, mode, None, None]) / held))

    free = alike(NONE)
    most = free if NONE in modes else np.zeros_like(free)
    for mode in modes:
        if mode == BLOCK:
            tight, kept = room - beside[:, mode, None, None], layer.kept[:, WHOLE, None, None]
            inputs = layer.kept[:, AGAIN, None, None]
            price = layer.again[:, AGAIN, None, None] / np.maximum(h * (kept - inputs), BYTE)
            block = np.minimum((left + price * tight) / (t + price * (s + h * kept)), tight / (s + h * inputs))
            most = np.maximum(most, np.minimum(block, left / t))
        elif mode != NONE:
            most = np.maximum(most, alike(mode))
    return most, free


def least_repeated(layer: LeastLayer, modes: Sequence[int], layers: float, room: Floats, beside: Floats) -> Floats:
    """Return the least seconds that run again in stages [R] of so many layers, one micro-batch in flight, with `room`
    bytes for their activations and what lives `beside` [R, 4] under each mode; infinite where none fits."""
    least = np.full(len(room), np.inf)
    for mode in modes:
        first, rest, grouped = MODES[mode]
        tight = room * (1.0 + SLACK) - beside[:, mode]
        leanest = 0.0 * room if grouped else layers * layer.kept[:, first]
        saved = np.maximum(layer.kept[:, rest] - layer.kept[:, first], BYTE)
        number = np.clip((layers * layer.kept[:, rest] - tight) / saved, 0.0, layers) if first != rest else layers
        least = np.where(leanest <= tight, np.minimum(least, number * layer.again[:, first]), least)
    return least


def fewest_repeated(kept: Floats, group: Floats, layers: Array, flight: Ints, room: Floats) -> Ints:
    """Return the least layers of each stage of a rank that run again, [N], where its `layers`, counted for each
    micro-batch in flight, keep `kept` [N, 3] bytes by state, `flight` stages hold any, and `group` bytes a layer live
    beside what is kept; 0 where nothing or modules of a layer alone need to run again to stay within `room`."""
    whole, lean, inputs = kept.T
    short = whole * layers - room
    number = np.ceil((short + group) / (np.maximum(flight, 1.0) * np.maximum(whole - inputs, BYTE)))
    return np.where((short > 0) & (lean * layers > room), np.clip(number, 1, None), 0).astype(np.int64)


def price(layer: LeastLayer) -> Floats:
    """Return the least seconds for which recomputation frees as many bytes as a layer keeps, [R]."""
    whole = layer.kept[:, WHOLE]
    rates = [layer.again[:, state] * whole / np.maximum(whole - layer.kept[:, state], BYTE) for state in (LEAN, AGAIN)]
    return np.minimum(*rates)
