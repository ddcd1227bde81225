"""Rows of every GPU at given shares of the state: the least time of the slowest GPU, exactly; and what no shares beat.

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

from shardwright.arrays import Bools, Columns, Floats, Ints, distinct, least_enough
from shardwright.cost.iteration.layered.plan import wave_seconds
from shardwright.cost.iteration.layered.seconds import Everyone, Slots, moved_seconds, slots, updating_seconds
from shardwright.cost.iteration.layered.shares import padded_bytes
from shardwright.cost.network.collectives import OVERLAP_SLOWDOWN, exposed_seconds
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.uneven.options import GpuOptions, most_rows
from shardwright.search.uneven.shares import grid, shares_of


@record
class RowCounts(Columns):
    """For each of N shares of the state: the most rows of a GPU of each type and the way it runs them [N, G], the
    seconds of the passes of the slowest GPU, and whether the batch can be shared so at all [N]."""

    rows: Ints
    option: Ints
    seconds: Floats
    possible: Bools


def shared_rows(options: Sequence[GpuOptions], state: Floats, *, relaxed: bool = False) -> RowCounts:
    """Return the rows with which the slowest GPU is fastest, where one of each type keeps `state` [N, G] of the whole.

    Bisection over all times that occur: a time is enough where the most rows that each type can take in it add up to
    the batch. `relaxed`: times and bytes may be smaller than the true ones, for a bound.
    """
    batch = options[0].context.job.global_batch
    room = [_room(gpu, state[:, place], _largest(state, relaxed=relaxed)) for place, gpu in enumerate(options)]
    tables = [_monotone(gpu, relaxed=relaxed) for gpu in options]
    times = distinct(np.concatenate([table[np.isfinite(table)] for table in tables]))
    counts = np.array([gpu.count for gpu in options])

    def taken(limit: Floats) -> tuple[Ints, Ints]:
        choices = [_taken(*group, limit) for group in zip(options, tables, room, strict=True)]
        return np.stack([rows for rows, _ in choices], axis=1), np.stack([way for _, way in choices], axis=1)

    def enough(limit: Floats) -> Bools:
        rows, _ = taken(limit)
        return np.asarray((rows @ counts >= batch) & (rows > 0).all(axis=1))

    if not len(times):
        zero = np.zeros(state.shape, dtype=np.int64)
        return RowCounts(
            rows=zero, option=zero, seconds=np.full(len(state), np.inf), possible=np.zeros(len(state), bool)
        )
    longest = np.full(len(state), len(times) - 1)
    possible = enough(times[longest])
    place = least_enough(0 * longest, longest, lambda place: enough(times[place]))
    rows, option = taken(times[place])
    return RowCounts(rows=rows, option=option, seconds=np.where(possible, times[place], np.inf), possible=possible)


def iteration_seconds(options: Sequence[GpuOptions], everyone: Everyone, rows_held: RowCounts, state: Floats) -> Floats:
    """Return the seconds of an iteration with such rows and shares of the state, [N]; infinite where impossible."""
    seconds = np.full(len(state), np.inf)
    (chosen,) = np.nonzero(rows_held.possible)
    if not len(chosen):
        return seconds
    rows, option, part = rows_held.rows[chosen], rows_held.option[chosen], state[chosen]
    kinds = [(gpu.context, gpu.units, gpu.way(option[:, place], rows[:, place])) for place, gpu in enumerate(options)]
    moved = moved_seconds(
        everyone, options[0].context.model, options[0].context.job, options[0].units.parameters, part.max(axis=1)
    )
    waves = np.sum([wave_seconds(kinds, moved, wave) for wave in range(options[0].waves)], axis=0)
    seconds[chosen] = waves + after_seconds(options, everyone, part)
    return coarse(seconds)


def after_seconds(options: Sequence[GpuOptions], everyone: Everyone, state: Floats) -> Floats:
    """Return the seconds of the update and of the gradient norm, [N]."""
    largest = state.max(axis=1)
    updates = [
        updating_seconds(gpu.context, gpu.units, everyone, state[:, place], largest)
        for place, gpu in enumerate(options)
    ]
    return np.asarray(np.max(updates, axis=0) + everyone.norm_seconds)


def _largest(state: Floats, *, relaxed: bool) -> Floats:
    return np.zeros(len(state)) if relaxed else np.asarray(state.max(axis=1))


def _room(gpu: GpuOptions, state: Floats, largest: Floats) -> Ints:
    """Return the most rows that fit in each way, [N, O]."""
    padded = padded_bytes(gpu.context.model, gpu.context.job, gpu.units, largest, gpu.gpus)
    return most_rows(gpu, state, padded)


def _monotone(gpu: GpuOptions, *, relaxed: bool) -> Floats:
    """Return times that do not fall with the rows, [O, R]: no less than the true ones or, relaxed, no more. Rows that
    are not legal have the times of more rows that are."""
    least = np.minimum.accumulate(gpu.seconds[:, ::-1], axis=1)[:, ::-1]
    if relaxed:
        return least
    return np.maximum.accumulate(np.where(np.isfinite(gpu.seconds), gpu.seconds, least), axis=1)


def _taken(gpu: GpuOptions, table: Floats, most: Ints, limit: Floats) -> tuple[Ints, Ints]:
    """Return the most legal rows within a time and the memory, and the first way to take as many in least time, [N]."""
    in_time = np.stack([np.searchsorted(column, limit, side="right") for column in table], axis=1)
    rows = gpu.legal_rows[np.arange(len(table)), np.minimum(in_time, most)]
    best = rows.max(axis=1)
    needed = table[:, np.maximum(best, 1) - 1].T
    return best, np.where(rows >= best[:, None], needed, np.inf).argmin(axis=1)


def bound_seconds(options: Sequence[GpuOptions], everyone: Everyone, steps: int) -> float:
    """Return what no shares of the state and rows of all GPUs of `options` (made for bounds) beat; infinite where
    nothing fits."""
    counts = [gpu.count for gpu in options]
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
    least = []
    for name in ("forward", "backward"):
        rates = [
            gpu.count / np.min(getattr(gpu.units, name) / gpu.units.sizes[:, None], axis=0).clip(1e-30)
            for gpu in options
        ]
        least.append((batch / np.sum(rates, axis=0))[None])
    return least[0], least[1]


def _least(least: Slots, work: Floats) -> Floats:
    """Return the least Σ φ(C_u, x_u) over C ≥ C* with Σ C ≥ `work`, [N]."""
    base = least.compute + exposed_seconds(least.traffic, least.compute)
    more = np.maximum(work - least.compute.sum(axis=1), 0.0)
    cheap = np.maximum(least.traffic - least.compute, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore"):
        rising = OVERLAP_SLOWDOWN * np.minimum(more, cheap) + np.maximum(more - cheap, 0.0)
    return np.asarray(base.sum(axis=1) + least.alone + rising)
