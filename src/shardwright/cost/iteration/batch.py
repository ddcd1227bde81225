"""The seconds of an iteration of many rows: a bound that is cheap, the exact time, and the verdict with memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, bits_of, distinct, packed, places_by_value
from shardwright.cost.context import Context, LayerRows, ShardIndex, shard_index
from shardwright.cost.iteration.footprint import footprint
from shardwright.cost.iteration.gathers import micro_batches
from shardwright.cost.iteration.moments import held_parameters
from shardwright.cost.iteration.orthogonalisation import orthogonalisation_seconds
from shardwright.cost.iteration.step import (
    StageTimes,
    norm_seconds,
    optimizer_seconds,
    reduction_tails,
    stage_groups,
    stage_times,
    tied_embedding_seconds,
    transfers,
)
from shardwright.cost.network.collectives import OVERLAP_SLOWDOWN
from shardwright.cost.pipeline.bound import interleaved_lower_bound, lower_bound, zero_bubble_lower_bound
from shardwright.cost.pipeline.schedule import interleaved, zero_bubble
from shardwright.cost.pipeline.simulate import folded, simulate
from shardwright.cost.strategies import Strategies, boundaries
from shardwright.records import record


@record
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
    reduce, gather = reduction_tails(
        context, rows, times, stage_groups(context, rows, int(rows.pp[0])), held.dense, held.expert
    )
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
    count = micro_batches(context.job, rows)
    forward, backward, weights = (_flat(times) for times in (stages.forward, stages.backward, stages.weights))
    if int(rows.pp[0]) == 1:
        return np.asarray(count * (forward + backward).sum(axis=1))
    seconds = np.empty(len(rows))
    for overlapped, apart in product((False, True), repeat=2):
        chosen = np.flatnonzero((rows.overlap_pp == overlapped) & (rows.zero_bubble == apart))
        if len(chosen):
            times = forward[chosen], backward[chosen], moves[chosen]
            times = times if overlapped else folded(*times)
            seconds[chosen] = _schedule_bound(rows, *times, count[chosen], weights[chosen] if apart else None)
    return seconds


def _schedule_bound(
    rows: Strategies, forward: Floats, backward: Floats, moves: Floats, count: Ints, weights: Floats | None
) -> Floats:
    if weights is not None:
        return zero_bubble_lower_bound(forward, backward, weights, int(rows.pp[0]), count, moves)
    if int(rows.vpp[0]) == 1:
        return lower_bound(forward, backward, moves, count)
    return interleaved_lower_bound(forward, backward, int(rows.pp[0]), count)


def exact_seconds(context: Context, rows: Strategies, parts: Iteration) -> Floats:
    """Return the iteration by simulating the pipeline, [N]."""
    return np.asarray(pipeline_seconds(context, rows, parts) + parts.data_parallel + parts.optimizer)


def pipeline_seconds(context: Context, rows: Strategies, parts: Iteration, *, free_transfers: bool = False) -> Floats:
    """Return the exact time from the first forward to the last backward pass, [N]. With `free_transfers`, as if
    activations moved between stages at once."""
    pp, vpp, times = int(rows.pp[0]), int(rows.vpp[0]), parts.stages
    counts = micro_batches(context.job, rows)
    forward, backward, weights = _flat(times.forward), _flat(times.backward), _flat(times.weights)
    if pp == 1:
        return np.asarray(counts * (forward + backward).sum(axis=1))
    moves = np.zeros_like(parts.transfers) if free_transfers else parts.transfers
    seconds = np.empty(len(rows))
    for count, apart in product(distinct(counts), (False, True)):
        of_kind = (counts == count) & (rows.zero_bubble == apart)
        if not of_kind.any():
            continue
        order = (zero_bubble if apart else interleaved)(pp, vpp, int(count))
        for overlapped in (False, True):
            chosen = of_kind & (rows.overlap_pp == overlapped)
            if chosen.any():
                seconds[chosen] = simulate(
                    order,
                    *(forward[chosen], backward[chosen], moves[chosen], weights[chosen] if apart else None),
                    blocking=not overlapped,
                ).makespan_seconds
    return seconds


def _flat(values: Floats) -> Floats:
    """Return [N, v, P] as [N, v * P]."""
    return values.reshape(len(values), -1)


@record
class Verdict:
    """Columns [N]: seconds of an iteration, peak bytes of the fullest GPU, and whether that is within its memory; of
    tensors alone the peak of the fullest GPU, and of those of the first and the last pipeline rank."""

    rows: Strategies
    seconds: Floats
    peak_bytes: Floats
    fits: Bools
    tensor_bytes: Floats
    first_tensor_bytes: Floats
    last_tensor_bytes: Floats


def evaluate(context: Context, rows: Strategies) -> Verdict:
    """Return the verdict on `rows`, of any shapes."""
    return _verdict(context, rows, exact_seconds)


def bounded(context: Context, rows: Strategies) -> Verdict:
    """Return the verdict on `rows` at once: its seconds are lower bounds, as no pipeline is simulated."""
    return _verdict(context, rows, bound_seconds)


def simulated_seconds(context: Context, rows: Strategies, index: ShardIndex) -> Floats:
    """Return the exact seconds of an iteration, [N]. `index` is a layer table that covers `rows`."""
    return _seconds(context, rows, index, exact_seconds)


Timed = Callable[[Context, Strategies, Iteration], Floats]


def _verdict(context: Context, rows: Strategies, timed: Timed) -> Verdict:
    index = shard_index(context, rows)
    shards = index.of(rows)
    peak, in_host, tensors = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros((3, len(rows)))
    for group, starts in _shapes(context, rows):
        of_part = replace(shards, row=shards.row[group])
        needed = footprint(context, rows.take(group), of_part, starts)
        peak[group], in_host[group] = needed.total.max(axis=1), needed.in_host.max(axis=1)
        tensors[:, group] = needed.tensors.max(axis=1), needed.tensors[:, 0], needed.tensors[:, -1]
    return Verdict(
        rows=rows,
        seconds=_seconds(context, rows, index, timed),
        peak_bytes=peak,
        fits=context.holds(peak, in_host),
        tensor_bytes=tensors[0],
        first_tensor_bytes=tensors[1],
        last_tensor_bytes=tensors[2],
    )


def _seconds(context: Context, rows: Strategies, index: ShardIndex, timed: Timed) -> Floats:
    shards = index.of(rows)
    seconds = np.zeros(len(rows))
    for group, starts in _shapes(context, rows):
        part, of_part = rows.take(group), replace(shards, row=shards.row[group])
        seconds[group] = timed(context, part, iteration(context, part, of_part, starts))
    return seconds


def _shapes(context: Context, rows: Strategies) -> Iterator[tuple[Ints, Ints]]:
    """Yield the indices of rows with equal pipeline ranks and virtual stages, and where their stages start."""
    for group in shape_groups(rows.pp, rows.vpp):
        stages = int(rows.pp[group[0]] * rows.vpp[group[0]])
        yield group, boundaries(context.layer_count, stages, rows.first_layers[group], rows.last_layers[group])


def shape_groups(pp: Ints, vpp: Ints) -> list[Ints]:
    """Return the indices of rows with equal pipeline ranks and virtual stages."""
    return places_by_value(packed([pp, vpp], bits_of([pp, vpp])))
