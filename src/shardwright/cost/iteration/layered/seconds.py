"""The time of a layered iteration, and when each GPU runs each unit.

At each unit u all GPUs wait for its gathered weights, so the slowest one sets the pace, C_u = max_i c_iu. While unit u
computes, the weights of the next one are gathered (g) and, backward, the gradients of the one before are scattered (s):

    T = g_0 + Σ_u φ(C_u, g_{u+1})  +  Σ_u φ(C'_u, g_{u-1} + s_{u+1})  +  s_0  +  max_i optimizer_i + T_norm

    φ(C, x) = max(C, x) + δ min(C, x)        δ: what computation loses beside communication (OVERLAP_SLOWDOWN)

The head's forward and backward passes are one. Without overlap φ(C, x) = C + x. Columns are [N, U].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.iteration.layered.shares import Passes
from shardwright.cost.iteration.replica_time import UnitPasses
from shardwright.cost.network.collectives import exposed_seconds
from shardwright.records import record


@record
class Slots:
    """The slots of an iteration in order: forward passes of all units but the head, those of the head both ways, and
    backward passes. Seconds of computing and of the communication beside it, [N, 2 U - 1] each, and of what nothing
    hides, [N]."""

    compute: Floats
    traffic: Floats
    alone: Floats


def slots(forward: Floats, backward: Floats, gather: Floats, scatter: Floats) -> Slots:
    """Return the slots where the slowest GPU takes `forward` and `backward` at each unit. The head's weights are there
    when its backward pass begins."""
    head = forward[:, -1:] + backward[:, -1:]
    back, before, after = (values[:, ::-1] for values in (backward[:, :-1], gather[:, :-1], scatter[:, 1:]))
    none = np.zeros_like(gather[:, :1])
    return Slots(
        compute=np.concatenate([forward[:, :-1], head, back], axis=1),
        traffic=np.concatenate([gather[:, 1:], before[:, :1], np.concatenate([before[:, 1:], none], 1) + after], 1),
        alone=gather[:, 0] + scatter[:, 0],
    )


def slot_seconds(slots: Slots, *, overlap: bool = True) -> Floats:
    """Return the seconds of each slot, φ(C, x), [N, 2 U - 1]."""
    hidden = slots.traffic
    if overlap:
        hidden = exposed_seconds(slots.traffic, slots.compute)
    return np.asarray(slots.compute + hidden)


def pass_seconds(slots: Slots, *, overlap: bool = True) -> Floats:
    """Return the seconds of all passes, [N]."""
    return np.asarray(slot_seconds(slots, overlap=overlap).sum(axis=1) + slots.alone)


def unit_passes(
    waves: Sequence[Sequence[Passes]], moved: tuple[Floats, Floats], *, overlap: bool
) -> tuple[UnitPasses, ...]:
    """Return the passes of GPUs of each kind; `waves` has what each kind computes in each wave, `moved` gathers and
    scatters of each unit, [1, U]. A pass begins when the unit's weights are there and ends when the GPU has computed;
    then it waits for the slowest."""
    columns: list[list[tuple[Floats, ...]]] = [[] for _ in waves[0]]
    begin = 0.0
    for wave, taken in enumerate(waves):
        forward, backward = (
            np.max([getattr(part, name) for part in taken], axis=0) for name in ("forward", "backward")
        )
        unit_slots = slots(forward, backward, *moved)
        lengths = slot_seconds(unit_slots, overlap=overlap)[0]
        starts = begin + moved[0][0, 0] + np.cumsum(lengths) - lengths
        for part, kind in zip(taken, columns, strict=True):
            kind.append(_wave(part, starts, wave))
        begin += float(pass_seconds(unit_slots, overlap=overlap)[0])
    return tuple(UnitPasses(*(np.concatenate(parts) for parts in zip(*kind, strict=True))) for kind in columns)


def _wave(passes: Passes, starts: Floats, wave: int) -> tuple[Floats, ...]:
    """Return unit, wave, whether it is a backward pass, start, end and what is computed again, for each pass in order:
    forward up to the head, whose backward pass follows at once, and back."""
    units = passes.forward.shape[1]
    up, down = np.arange(units), np.arange(units)[::-1]
    unit, backward = np.concatenate([up, down]), np.repeat([False, True], units)
    begin = np.concatenate([starts[:units], starts[units - 1 :]])
    begin[units] += passes.forward[0, -1]
    seconds = np.concatenate([passes.forward[0], passes.backward[0, ::-1]])
    again = np.concatenate([np.zeros(units), passes.recompute[0, ::-1]])
    return unit, np.full(2 * units, wave), backward, begin, begin + seconds, again
