"""What no shares beat.

Whatever the shares, rows sum to the batch B. A GPU of type g runs a row of slot u (a unit's forward or backward pass)
in no less than κ_gu seconds, so the slowest GPU there takes

    C_u ≥ C*_u = B / Σ_g n_g / κ_gu,

and Σ_u C_u ≥ W, the least time of the slowest GPU over all its passes. With x_u the communication beside slot u for
even shares, of which none moves less, Σ_u φ(C_u, x_u) with φ from `cost.iteration.layered.seconds` is least where the
C_u are as small as can be, and what W asks beyond Σ C*_u goes where φ rises least: δ up to x_u, 1 above.

In several waves each has its part of C and W, and all of x; the mean wave is no longer than the longest, and φ is
convex. W depends on the state. A cell of the grid of state shares is bounded at the corner where every type keeps
least; the bound is the least over all cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.iteration.layered.network import Everyone, moved_seconds
from shardwright.cost.iteration.layered.seconds import Slots, slots
from shardwright.cost.network.collectives import OVERLAP_SLOWDOWN, exposed_seconds
from shardwright.search.uneven.options import GpuOptions
from shardwright.search.uneven.rows import after_seconds, shared_rows
from shardwright.search.uneven.states import grid, shares_of


def bound_seconds(options: Sequence[GpuOptions], everyone: Everyone, steps: int) -> float:
    """Return what no shares of the state and rows of all GPUs of `options` (made for bounds) beat; infinite where
    nothing fits."""
    counts = [own.count for own in options]
    state = shares_of(_corners(grid(len(options), steps)), steps, counts)
    work = shared_rows(options, state, relaxed=True).seconds
    even = np.maximum(state.max(axis=1), 1.0 / everyone.gpus)
    gather, scatter = moved_seconds(
        everyone, options[0].context.model, options[0].context.job, options[0].units.parameters, even
    )
    waves = options[0].waves
    forward, backward = _least_passes(options)
    least = slots(
        np.broadcast_to(forward / waves, gather.shape), np.broadcast_to(backward / waves, gather.shape), gather, scatter
    )
    return float((waves * _least(least, work / waves) + after_seconds(options, everyone, state)).min())


def _corners(points: Ints) -> Ints:
    """Return the corner of each cell where every type keeps least: all but the last as the point has it, the last what
    is left when the others have a step more each."""
    corners = points.copy()
    corners[:, -1] = np.maximum(points[:, -1] - (points.shape[1] - 1), 0)
    return corners


def _least_passes(options: Sequence[GpuOptions]) -> tuple[Floats, Floats]:
    """Return the least seconds of the slowest GPU at each unit, forward and backward, [1, U] each: C*."""
    batch = options[0].context.job.global_batch
    found = []
    for name in ("forward", "backward"):
        rates = [
            own.count / np.min(getattr(own.units, name) / own.units.sizes[:, None], axis=0).clip(1e-30)
            for own in options
        ]
        found.append((batch / np.sum(rates, axis=0))[None])
    return found[0], found[1]


def _least(least: Slots, work: Floats) -> Floats:
    """Return the least Σ φ(C_u, x_u) over C ≥ C* with Σ C ≥ `work`, [N]."""
    base = least.compute + exposed_seconds(least.traffic, least.compute)
    more = np.maximum(work - least.compute.sum(axis=1), 0.0)
    cheap = np.maximum(least.traffic - least.compute, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore"):
        rising = OVERLAP_SLOWDOWN * np.minimum(more, cheap) + np.maximum(more - cheap, 0.0)
    return np.asarray(base.sum(axis=1) + least.alone + rising)
