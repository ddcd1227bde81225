"""The seconds of an iteration for rows of equal pipeline shape: a bound that is cheap, and the exact time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.arrays import Floats, Ints, distinct
from shardwright.cost.context import Context, LayerRows
from shardwright.cost.iteration.footprint import held_parameters, micro_batches
from shardwright.cost.iteration.orthogonalisation import orthogonalisation_seconds
from shardwright.cost.iteration.step import (
    StageTimes,
    norm_seconds,
    optimizer_seconds,
    reduction_tails,
    stage_times,
    tied_embedding_seconds,
    transfers,
)
from shardwright.cost.network.collectives import OVERLAP_SLOWDOWN
from shardwright.cost.pipeline.bound import interleaved_lower_bound, lower_bound
from shardwright.cost.pipeline.schedule import interleaved
from shardwright.cost.pipeline.simulate import folded, simulate
from shardwright.cost.strategies import Strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Everything of an iteration but the pipeline's own time. Seconds [N], but for `stages` and `transfers`.

    An overlapped transfer makes the pass before it longer by the slowdown that it causes. `transfers` is the rest of
    it, so that a message never arrives later than one that blocks its sender.
    """

    stages: StageTimes
    transfers: Floats
    data_parallel: Floats
    optimizer: Floats


def iteration(context: Context, rows: Strategies, shards: LayerRows, starts: Ints) -> Iteration:
    """Return the parts of an iteration. All rows have equal pp and vpp."""
    moves = transfers(context, rows)
    times = beside_transfers(rows, stage_times(context, rows, shards, starts), moves)
    held = held_parameters(context, rows, shards, starts)
    reduce, gather = reduction_tails(context, rows, times, held.dense, held.expert)
    update = optimizer_seconds(context, rows, held.dense, held.expert) + orthogonalisation_seconds(context, rows, held)
    return Iteration(
        stages=times,
        transfers=np.where(rows.overlap_pp[:, None], 1.0 - OVERLAP_SLOWDOWN, 1.0) * moves,
        data_parallel=reduce.max(axis=1) + gather.max(axis=1) + tied_embedding_seconds(context, rows),
        optimizer=update.max(axis=1) + norm_seconds(context, rows),
    )


def beside_transfers(rows: Strategies, times: StageTimes, moves: Floats) -> StageTimes:
    """Return stage times that bear the slowdown of the sends which run beside them."""
    if int(rows.pp[0]) == 1 or not rows.overlap_pp.any():
        return times
    loss = OVERLAP_SLOWDOWN * moves * rows.overlap_pp[:, None]
    longer = folded(_flat(times.forward), _flat(times.backward), loss)
    shape = times.forward.shape
    return replace(times, forward=longer[0].reshape(shape), backward=longer[1].reshape(shape))


def bound_seconds(context: Context, rows: Strategies, parts: Iteration) -> Floats:
    """Return a lower bound of the iteration, [N]; without pipeline parallelism it is exact."""
    pipeline = pipeline_bound_seconds(context, rows, parts.stages, parts.transfers)
    return np.asarray(pipeline + parts.data_parallel + parts.optimizer)


def pipeline_bound_seconds(context: Context, rows: Strategies, stages: StageTimes, moves: Floats) -> Floats:
    """Return a lower bound of the pipeline's time, [N]. Transfers that are not overlapped occupy the sender."""
    count = micro_batches(context, rows)
    forward, backward = _flat(stages.forward), _flat(stages.backward)
    if int(rows.pp[0]) == 1:
        return np.asarray(count * (forward + backward).sum(axis=1))
    seconds = np.empty(len(rows))
    for overlapped in (False, True):
        chosen = np.flatnonzero(rows.overlap_pp == overlapped)
        if len(chosen):
            times = forward[chosen], backward[chosen], moves[chosen]
            times = times if overlapped else folded(*times)
            seconds[chosen] = _schedule_bound(rows, *times, count[chosen])
    return seconds


def _schedule_bound(rows: Strategies, forward: Floats, backward: Floats, moves: Floats, count: Ints) -> Floats:
    if int(rows.vpp[0]) == 1:
        return lower_bound(forward, backward, moves, count)
    return interleaved_lower_bound(forward, backward, int(rows.pp[0]), count)


def exact_seconds(context: Context, rows: Strategies, parts: Iteration) -> Floats:
    """Return the iteration by simulating the pipeline, [N]."""
    return np.asarray(pipeline_seconds(context, rows, parts) + parts.data_parallel + parts.optimizer)


def pipeline_seconds(context: Context, rows: Strategies, parts: Iteration, *, free_transfers: bool = False) -> Floats:
    """Return the exact time from the first forward to the last backward pass, [N]. With `free_transfers`, as if
    activations moved between stages at once."""
    pp, vpp = int(rows.pp[0]), int(rows.vpp[0])
    counts = micro_batches(context, rows)
    forward, backward = _flat(parts.stages.forward), _flat(parts.stages.backward)
    if pp == 1:
        return np.asarray(counts * (forward + backward).sum(axis=1))
    moves = np.zeros_like(parts.transfers) if free_transfers else parts.transfers
    seconds = np.empty(len(rows))
    for count in distinct(counts):
        order = interleaved(pp, vpp, int(count))
        for overlapped in (False, True):
            chosen = (counts == count) & (rows.overlap_pp == overlapped)
            if chosen.any():
                seconds[chosen] = simulate(
                    order, forward[chosen], backward[chosen], moves[chosen], blocking=not overlapped
                ).makespan_seconds
    return seconds


def _flat(values: Floats) -> Floats:
    """Return [N, v, P] as [N, v * P]."""
    return values.reshape(len(values), -1)
