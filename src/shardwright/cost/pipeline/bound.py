"""Lower bounds on the time of 1F1B, interleaved 1F1B and zero bubble: closed forms, no simulation.

For every rank i the schedule takes at least

    fill_i + work_i + idle_i + drain_i ,

and the largest of these sums is a bound. Why each term holds:

* fill: the first operation, the forward of micro-batch 0 in stage i, follows the forwards and transfers of all stages
  before i. drain: the last operation, the backward of micro-batch K - 1 in stage i, is followed by the backwards and
  transfers back to stage 0.
* work: between these the rank runs all its operations.
* idle: let e be the rank's last virtual stage (e = i for 1F1B). Between the end of the rank's first forward and the
  start of its first backward, micro-batch 0 must go from stage i to the last one and back to stage e; with w the
  rank's warm-up, only the min(w, K * v - 1) forwards that the order puts there can be running meanwhile, and the rest
  of the round trip is idle. In the same way micro-batch K - 1 goes from the rank's last forward, of stage e, to the
  last stage and back to its last backward, of stage i, while w backwards are running. The two gaps do not overlap
  where the last forward comes after the first backward, K * v >= w + 2, and then their sum counts, else the larger.

Under zero bubble `work` has the gradients of weights, which may run in the second gap and after the last backward: only
fill, work and the first gap count there, with its shorter warm-up.

With blocking transfers the same holds for the times that `pipeline.folded` returns. Derived here.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.pipeline.schedule import warmup_forwards, zero_bubble_warmup


def lower_bound(
    forward_seconds: Floats,
    backward_seconds: Floats,
    transfer_seconds: Floats,
    micro_batches: Ints | int,
) -> Floats:
    """Return seconds [N] that 1F1B cannot beat; exact for equal stages without transfers.

    Times are [N, P], [N, P] and [N, P - 1] as in `pipeline.simulate`; `micro_batches` is [N] or one number.
    """
    times = forward_seconds, backward_seconds, transfer_seconds
    k = _column(micro_batches, len(forward_seconds))
    by_rank = np.maximum(_work_and_gaps(*times, forward_seconds.shape[1], k), _chain_of_round_trips(*times, k))
    return np.asarray(by_rank.max(axis=1))


def interleaved_lower_bound(
    forward_seconds: Floats,
    backward_seconds: Floats,
    ranks: int,
    micro_batches: Ints | int,
    transfer_seconds: Floats | None = None,
) -> Floats:
    """Return seconds [N] that interleaved 1F1B cannot beat; exact for equal virtual stages without transfers.

    Times are [N, V], [N, V] and [N, V - 1] (None: messages take no time) as in `pipeline.simulate`, for two or more
    virtual stages a rank; `micro_batches` is [N] or one number, and a multiple of `ranks`.
    """
    candidates, stages = forward_seconds.shape
    transfer = np.zeros((candidates, stages - 1)) if transfer_seconds is None else transfer_seconds
    k = _column(micro_batches, candidates)
    return np.asarray(_work_and_gaps(forward_seconds, backward_seconds, transfer, ranks, k).max(axis=1))


def zero_bubble_lower_bound(
    forward_seconds: Floats,
    backward_seconds: Floats,
    weights_seconds: Floats,
    ranks: int,
    micro_batches: Ints | int,
    transfer_seconds: Floats | None = None,
) -> Floats:
    """Return seconds [N] that zero bubble cannot beat; arguments as in `interleaved_lower_bound`, for one virtual stage
    a rank or more, backward passes without the gradients of weights, which take `weights_seconds` [N, V]."""
    candidates, stages = forward_seconds.shape
    v, rank = stages // ranks, np.arange(ranks)
    transfer = np.zeros((candidates, stages - 1)) if transfer_seconds is None else transfer_seconds
    k = _column(micro_batches, candidates)
    times = forward_seconds, backward_seconds, transfer
    _, to_first_backward, _ = _travel(*times, ranks)
    fill = _cumulative(forward_seconds)[:, rank] + _cumulative(transfer)[:, rank]
    work = k * (forward_seconds + backward_seconds + weights_seconds).reshape(candidates, v, ranks).sum(axis=1)
    others = np.minimum(zero_bubble_warmup(ranks, v, rank), k * v - 1)
    by_rank = fill + work + np.maximum(0.0, to_first_backward - _work_of(forward_seconds, others, v))
    if v == 1:
        by_rank = np.maximum(by_rank, _chain_of_round_trips(*times, k))
    return np.asarray(by_rank.max(axis=1))


def _chain_of_round_trips(forward: Floats, backward: Floats, transfer: Floats, k: Ints) -> Floats:
    """Return the time of 1F1B along each rank's chain of waits [N, P], which is long where transfers are slow.

    On rank i the forward of micro-batch m + w + 1 follows the backward of micro-batch m, so ceil(K / (w + 1)) passes
    of a micro-batch from rank i to the end and back follow one another; the (K - 1) mod (w + 1) forwards that run
    before the first of them, or as many backwards after the last, come on top.
    """
    ranks = forward.shape[1]
    fill_and_drain, round_trip, _ = _travel(forward, backward, transfer, ranks)
    trips, rest = np.divmod(k - 1, warmup_forwards(ranks, 1, np.arange(ranks)) + 1)
    passes = (trips + 1) * (forward + backward + round_trip)
    return np.asarray(fill_and_drain + passes + rest * np.maximum(forward, backward))


def _work_and_gaps(forward: Floats, backward: Floats, transfer: Floats, ranks: int, k: Ints) -> Floats:
    """Return fill + work + idle + drain of each rank [N, P]; `k` [N, 1] is the number of micro-batches."""
    candidates, stages = forward.shape
    v = stages // ranks
    warmup = warmup_forwards(ranks, v, np.arange(ranks))
    fill_and_drain, to_first_backward, to_last_backward = _travel(forward, backward, transfer, ranks)
    work = k * (forward + backward).reshape(candidates, v, ranks).sum(axis=1)
    others = np.minimum(warmup, k * v - 1)
    early = np.maximum(0.0, to_first_backward - _work_of(forward, others, v))
    late = np.maximum(0.0, to_last_backward - _work_of(backward, others, v))
    idle = np.where(k * v >= warmup + 2, early + late, np.maximum(early, late))
    return np.asarray(fill_and_drain + work + idle)


def _travel(forward: Floats, backward: Floats, transfer: Floats, ranks: int) -> tuple[Floats, Floats, Floats]:
    """Return for each rank [N, P]: the way of a micro-batch from stage 0 to the rank's first stage, and back; from the
    end of the forward in the rank's first stage to the start of the backward in its last; and from the end of the
    forward in its last to the start of the backward in its first."""
    first = np.arange(ranks)
    last = first + forward.shape[1] - ranks
    f, b, c = _cumulative(forward), _cumulative(backward), _cumulative(transfer)
    links = 2 * c[:, -1:] - c[:, first] - c[:, last]
    ends = f[:, first] + b[:, first] + 2 * c[:, first]
    return ends, _after(f, first) + _after(b, last) + links, _after(f, last) + _after(b, first) + links


def _column(micro_batches: Ints | int, candidates: int) -> Ints:
    return np.broadcast_to(np.asarray(micro_batches, dtype=np.intp), (candidates,))[:, None]


def _cumulative(seconds: Floats) -> Floats:
    """Return the sums [N, n + 1] of the first 0, 1, …, n columns."""
    return np.concatenate([np.zeros((len(seconds), 1)), np.cumsum(seconds, axis=1)], axis=1)


def _after(cumulative: Floats, stage: Ints) -> Floats:
    """Return the sum over all stages after `stage` [P], for each candidate [N, P]."""
    return np.asarray(cumulative[:, -1:] - cumulative[:, stage + 1])


def _work_of(seconds: Floats, others: Ints, virtual_stages: int) -> Floats:
    """Return the time of a rank's `others` [N, P] forwards after its first one, or of its backwards before its last:
    in groups of P through chunk 0, 1, …, then from chunk 0 again, seen from the start and from the end alike."""
    candidates, stages = seconds.shape
    ranks = stages // virtual_stages
    rounds, part = np.divmod(others + 1, stages)
    total = np.zeros((candidates, ranks))
    for chunk in range(virtual_stages):
        count = rounds * ranks + np.clip(part - chunk * ranks, 0, ranks) - (chunk == 0)
        total += count * seconds[:, chunk * ranks : (chunk + 1) * ranks]
    return total
