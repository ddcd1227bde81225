"""Exact time of a pipeline schedule with unequal stages and transfers, for many candidates at once.

An operation starts when its rank has finished the operation before it and its message has arrived. Two ways to carry
messages:

* asynchronous: a message arrives `transfer_seconds` after the operation that made it, and keeps no rank from computing.
* blocking: a rank sends before it does anything else, so every operation is longer by the transfer of its own result
  (forward of stage j by transfer j, backward by transfer j - 1), and the receiver, which has nothing to do until the
  message is there, waits for it. A receive takes no time of its own beside a send of the same rank: links are full
  duplex, and Megatron-LM without overlapped transfers fuses a send with the receive that follows it
  (send_forward_recv_backward and its like in megatron/core/pipeline_parallel/schedules.py). A rank in the middle of
  1F1B thus spends both its transfers once, not twice, for each pass of a micro-batch back and forth.

Blocking is the asynchronous case with longer operations and no transfers (`folded`), so there is one simulator.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.pipeline.schedule import Order, Repeat
from shardwright.records import record

# The least number of states that are looked through for the present state, only earlier in time.
_LEAST_PAST = 8
# Rounding noise allowed between two states, relative to the time passed.
_NOISE = 8 * float(np.finfo(np.float64).eps)


@record(eq=False)
class PipelineTime:
    """Seconds of one pass of all micro-batches through the pipeline, for N candidates.

    `makespan_seconds` [N] is the end of the last operation, `finish_seconds` [N, P] the end of each rank's last one
    (its gradients are complete then), `busy_seconds` [N, P] the time in which a rank computes or, with blocking
    transfers, sends.
    """

    makespan_seconds: Floats
    finish_seconds: Floats
    busy_seconds: Floats


@record(eq=False)
class Timeline:
    """All operations of one candidate, rank by rank and in time; equally long arrays."""

    rank: Ints
    kind: Ints
    virtual_stage: Ints
    micro_batch: Ints
    start_seconds: Floats
    end_seconds: Floats


def simulate(
    order: Order,
    forward_seconds: Floats,
    backward_seconds: Floats,
    transfer_seconds: Floats,
    weights_seconds: Floats | None = None,
    *,
    blocking: bool = False,
) -> PipelineTime:
    """Return the exact time of `order` for N candidates.

    `forward_seconds` and `backward_seconds` [N, V] are the times of one micro-batch in each of the V = P * v virtual
    stages (virtual stage j = chunk * P + rank; backward with recomputation), `transfer_seconds` [N, V - 1] the one-way
    time of a message between stages j and j + 1. Of an order that has the gradients of weights apart `weights_seconds`
    [N, V] are theirs, and no part of `backward_seconds`. All are finite and not negative.

    The middle of the schedule is a linear system in the (max, +) algebra, which becomes periodic: once the state of
    all ranks is an earlier state shifted in time, the remaining repetitions are added without running them.
    """
    times = forward_seconds, backward_seconds, transfer_seconds
    forward, backward, transfer = folded(*times) if blocking else times
    durations = _durations(order, forward, backward, weights_seconds)
    duration, delay = _tables(order, durations, transfer)
    state = np.zeros((order.depth, order.ranks, duration.shape[1]))
    repeat, rows = order.repeat, len(order.code)
    first, last = (repeat.start, repeat.stop) if repeat else (rows, rows)
    for start, stop in ((0, first), (first, last), (last, rows)):
        if start < stop:
            step = _stepper(order.code[start:stop], order.source[start:stop], duration, delay)
            state = _run_repeat(step, state, repeat) if repeat and start == first else step(state)[stop - start :]
    finish = np.ascontiguousarray(state[-1].T)
    work = sum(durations[1:], durations[0]).reshape(len(finish), order.virtual_stages, order.ranks)
    return PipelineTime(
        makespan_seconds=finish.max(axis=1),
        finish_seconds=finish,
        busy_seconds=order.micro_batches * work.sum(axis=1),
    )


def timeline(
    order: Order,
    forward_seconds: Floats,
    backward_seconds: Floats,
    transfer_seconds: Floats,
    weights_seconds: Floats | None = None,
    *,
    blocking: bool = False,
) -> Timeline:
    """Return start and end of every operation of one candidate; arguments as in `simulate`, without the first axis."""
    times = tuple(np.asarray(row)[None] for row in (forward_seconds, backward_seconds, transfer_seconds))
    forward, backward, transfer = folded(*times) if blocking else times
    weights = None if weights_seconds is None else np.asarray(weights_seconds)[None]
    duration, delay = _tables(order, _durations(order, forward, backward, weights), transfer)
    full = order.expanded()
    state = np.zeros((full.depth, full.ranks, 1))
    ends = _stepper(full.code, full.source, duration, delay)(state)[full.depth :, :, 0].T
    code = full.code.T
    busy = code < full.kinds * full.stages
    kind, stage = np.divmod(code[busy], full.stages)
    rank = np.nonzero(busy)[0]
    return Timeline(
        rank=rank, kind=kind, virtual_stage=stage, micro_batch=full.micro_batch.T[busy],
        start_seconds=ends[busy] - duration[code[busy], 0], end_seconds=ends[busy],
    )  # fmt: skip


def folded(
    forward_seconds: Floats, backward_seconds: Floats, transfer_seconds: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return forward, backward and transfer times [N, V], [N, V], [N, V - 1] in which blocking sends are part of the
    operations and the transfers are zero."""
    forward, backward = np.array(forward_seconds, dtype=float), np.array(backward_seconds, dtype=float)
    forward[:, :-1] += transfer_seconds
    backward[:, 1:] += transfer_seconds
    return forward, backward, np.zeros_like(transfer_seconds, dtype=float)


def _durations(order: Order, forward: Floats, backward: Floats, weights: Floats | None) -> list[Floats]:
    """Return the times of each kind of operation, [N, V] each."""
    given = [forward, backward] if weights is None else [forward, backward, weights]
    assert len(given) == order.kinds, "gradients of weights have times where they are apart"
    return given


def _tables(order: Order, durations: list[Floats], transfer: Floats) -> tuple[Floats, Floats]:
    """Return the duration of each code of the grid and the delay of the message it waits for, both
    [kinds * V + 1, N]. No message is one that came before all time."""
    stages, count = order.stages, len(transfer)
    assert all(seconds.shape == (count, stages) for seconds in durations), "one time for each virtual stage"
    assert transfer.shape == (count, stages - 1), "one transfer between neighbouring virtual stages"
    codes = order.kinds * stages + 1
    duration, delay = np.zeros((codes, count)), np.full((codes, count), -np.inf)
    duration[:-1] = np.concatenate(durations, axis=1).T
    delay[1:stages] = delay[stages : 2 * stages - 1] = transfer.T
    return duration, delay


def _stepper(code: Ints, source: Ints, duration: Floats, delay: Floats) -> Callable[[Floats], Floats]:
    """Return the function that takes the ends of the operations in the last rows [depth, P, N] through the rows of
    `code` [rows, P], and gives all of them [depth + rows, P, N]. A rank with nothing to do keeps its last end."""
    rows, ranks = code.shape
    lasts, waits, sources = duration[code], delay[code], list(source)

    def step(state: Floats) -> Floats:
        depth, _, count = state.shape
        ends = np.empty((depth + rows, ranks, count))
        ends[:depth] = state
        flat, line = ends.reshape(-1, count), list(ends)
        windows = [flat[row * ranks : (row + depth) * ranks] for row in range(rows)]
        arrival = np.empty((ranks, count))
        each_row = zip(windows, sources, waits, line[depth - 1 : -1], lasts, line[depth:], strict=True)
        for above, index, wait, before, last, end in each_row:
            above.take(index, axis=0, out=arrival, mode="clip")
            np.add(arrival, wait, out=arrival)
            np.maximum(arrival, before, out=arrival)
            np.add(arrival, last, out=end)
        return ends

    return step


def _run_repeat(step: Callable[[Floats], Floats], state: Floats, repeat: Repeat) -> Floats:
    """Return the state after all repetitions, without running those that only shift an earlier state in time."""
    depth, units = len(state), (repeat.stop - repeat.start) // repeat.unit
    rows = repeat.unit * np.arange(units + 1)[:, None] + np.arange(depth)
    keep = max(1, _LEAST_PAST - units)
    past = state[None]
    for remaining in reversed(range(repeat.times)):
        past = np.concatenate([past[-keep:-1], step(past[-1])[rows]])
        if remaining:
            ahead = _ahead(past, remaining * units)
            if ahead is not None:
                return ahead
    return np.asarray(past[-1])


def _ahead(past: Floats, remaining: int) -> Floats | None:
    """Return the state `remaining` units after the last of `past` [states, depth, P, N], or None unless all candidates
    have become periodic.

    If state(t) = state(t - p) + shift for all ranks alike, then state(t + n) = state(t - p + n mod p) + shift *
    (1 + n // p), because running a unit commutes with shifting all times.
    """
    now, candidates = past[-1], np.arange(past.shape[3])
    noise = _NOISE * now.max(axis=(0, 1))
    ends_of_pipeline = now[-1, [0, -1]] - past[:-1, -1][:, [0, -1]]
    if not (abs(ends_of_pipeline[:, 0] - ends_of_pipeline[:, 1]) <= noise).any(axis=0).all():
        return None
    gain = now - past[:-1]
    shift = gain.max(axis=(1, 2))
    periodic = shift - gain.min(axis=(1, 2)) <= noise
    if not periodic.any(axis=0).all():
        return None
    period = 1 + periodic[::-1].argmax(axis=0)
    whole, part = np.divmod(remaining, period)
    earlier = len(past) - 1 - period
    state = past[earlier + part, :, :, candidates] + ((1 + whole) * shift[earlier, candidates])[:, None, None]
    return np.ascontiguousarray(state.transpose(1, 2, 0))
