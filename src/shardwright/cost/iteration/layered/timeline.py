"""When each GPU runs each unit under uneven FSDP: all its micro-batches of a wave through a unit, then the next one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.iteration.layered.seconds import pass_seconds, slot_seconds, slots
from shardwright.cost.iteration.layered.shares import Passes
from shardwright.cost.iteration.replica_time import UnitPasses


def unit_passes(
    waves: Sequence[Sequence[Passes]], moved: tuple[Floats, Floats], *, overlap: bool
) -> tuple[UnitPasses, ...]:
    """Return the passes of GPUs of each kind; `waves` has what each kind computes in each wave, `moved` gathers and
    scatters of each unit, [1, U]. A pass begins when the unit's weights are there and ends when the GPU has computed;
    then it waits for the slowest."""
    columns: list[list[tuple[Floats, ...]]] = [[] for _ in waves[0]]
    begin = 0.0
    for wave, taken in enumerate(waves):
        forward, backward = (np.max([getattr(own, name) for own in taken], axis=0) for name in ("forward", "backward"))
        found = slots(forward, backward, *moved)
        lengths = slot_seconds(found, overlap=overlap)[0]
        starts = begin + moved[0][0, 0] + np.cumsum(lengths) - lengths
        for own, kind in zip(taken, columns, strict=True):
            kind.append(_wave(own, starts, wave))
        begin += float(pass_seconds(found, overlap=overlap)[0])
    return tuple(UnitPasses(*(np.concatenate(parts) for parts in zip(*kind, strict=True))) for kind in columns)


def _wave(own: Passes, starts: Floats, wave: int) -> tuple[Floats, ...]:
    """Return unit, wave, whether it is a backward pass, start, end and what is computed again, for each pass in order:
    forward up to the head, whose backward pass follows at once, and back."""
    units = own.forward.shape[1]
    up, down = np.arange(units), np.arange(units)[::-1]
    unit, backward = np.concatenate([up, down]), np.repeat([False, True], units)
    begin = np.concatenate([starts[:units], starts[units - 1 :]])
    begin[units] += own.forward[0, -1]
    seconds = np.concatenate([own.forward[0], own.backward[0, ::-1]])
    again = np.concatenate([np.zeros(units), own.recompute[0, ::-1]])
    return unit, np.full(2 * units, wave), backward, begin, begin + seconds, again
