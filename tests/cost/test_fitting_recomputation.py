"""The recomputation with which a stage fits in least time, against every mode and number of layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.stage.exact import (
    fitting_recomputation,
    in_host_bytes,
    kept_bytes,
    live_bytes,
    of_stages,
    repeated_seconds,
)
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM

LAYERS, STAGES = 9, 400


@dataclass(frozen=True)
class Figures:
    """Running sums of one table of alike layers, with 1 byte that is kept of each input."""

    forward: Floats
    core: Floats
    kept: Floats
    offloaded: Floats
    live: Floats
    group: Floats
    tower_again: Floats


def running(*of_layer: float) -> Floats:
    """Return running sums [len(of_layer), LAYERS + 3] over the layers, without anything at both ends."""
    return np.outer(of_layer, np.clip(np.arange(LAYERS + 3) - 1, 0, LAYERS))


def test_it_is_the_fastest_of_all_that_fit_the_gpu_and_the_host() -> None:
    draw = np.random.default_rng(0)
    begin = draw.integers(0, LAYERS, STAGES)
    end = draw.integers(begin + 1, LAYERS + 1)
    of, _ = of_stages(np.zeros(STAGES, dtype=np.int64), begin, end, LAYERS)
    flight, logits = draw.integers(1, 5, STAGES), draw.uniform(0.0, 4.0, STAGES)
    room, host_room = draw.uniform(2.0, 120.0, STAGES), draw.uniform(-5.0, 20.0, STAGES)
    for away in (0.0, 1.0):
        layers = Figures(
            forward=running(1.0), core=running(0.2), kept=running(12.0, 8.0, 1.0 - away)[None], live=np.ones((1, 3)),
            offloaded=running(away), group=np.array([3.0]), tower_again=np.zeros(1),
        )  # fmt: skip
        best = np.full(STAGES, np.inf)
        for mode in (NONE, SELECTIVE, BLOCK, UNIFORM):
            for number in range(1, LAYERS + 1) if mode in (BLOCK, UNIFORM) else (0,):
                count = np.minimum(number, of.length)
                live = live_bytes(layers.live, layers.group, of.row, mode, count, of.length)
                on_gpu = kept_bytes(layers.kept, of, mode, count) * flight + np.maximum(live, logits)
                in_host = in_host_bytes(layers.offloaded, of, mode, count) * flight
                again = repeated_seconds(layers.forward, layers.core, layers.tower_again, of, mode, count)
                best = np.where((on_gpu <= room) & (in_host <= host_room), np.minimum(best, again), best)
        fastest, code, chosen = fitting_recomputation(
            layers, of, logits, flight, room, host_room, (NONE, SELECTIVE, UNIFORM, BLOCK), alone=False
        )
        np.testing.assert_allclose(fastest, best, rtol=1e-12)
        assert {NONE, SELECTIVE, BLOCK, UNIFORM} <= set(code[np.isfinite(fastest)].tolist())
        assert chosen.min() == 0 and np.isinf(fastest).any()
