"""How many micro-batches a pipeline rank holds activations of when it holds the most, in closed form."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from shardwright.arrays import Floats, Ints, distinct, distinct_rows
from shardwright.cost.pipeline.schedule import warmup_forwards, zero_bubble_warmup


def in_flight(
    ranks: Ints | int, virtual_stages: Ints | int, micro_batches: Ints | int, rank: Ints | int, *, apart: bool = False
) -> Ints:
    """Return the peak number of activations that a rank holds, elementwise over arrays that broadcast.

    One unit is one micro-batch in one virtual stage: a forward that is done and whose backward is not. 1F1B (one
    virtual stage): min(K, P - rank). Interleaved: min(K * v, warmup + 1) with Megatron-LM's warm-up of
    2 * (P - 1 - rank) + (v - 1) * P forwards, since a rank runs one forward more before its first backward and from
    then on one of each. Where gradients of weights are computed `apart` (zero bubble), a micro-batch counts until its
    own are: min(K * v, v * P).
    """
    most = np.asarray(micro_batches) * np.asarray(virtual_stages)
    return np.asarray(np.minimum(most, _before_first(ranks, virtual_stages, rank, apart=apart) + 1), dtype=np.intp)


def _before_first(ranks: Ints | int, virtual_stages: Ints | int, rank: Ints | int, *, apart: bool) -> Ints:
    """Return the forwards that a rank has run before the one that its first complete backward pass follows."""
    if apart:
        return np.asarray(zero_bubble_warmup(ranks, virtual_stages, rank) + rank)
    return warmup_forwards(ranks, virtual_stages, rank)


def most_live(values: Floats, micro_batches: Ints, *, apart: bool = False) -> Floats:
    """Return the most that ranks hold, [N, P], where a micro-batch leaves `values` [N, v, P] on each virtual stage, and
    each pipeline runs `micro_batches` [N]."""
    virtual_stages, ranks = values.shape[1:]
    if virtual_stages == 1:
        count = in_flight(ranks, 1, micro_batches[:, None], np.arange(ranks), apart=apart)
        return np.asarray(values[:, 0] * count)
    rounds = np.minimum(micro_batches // ranks, _ROUNDS)
    return _most(values, rounds, lambda count: live_chunks(ranks, virtual_stages, count, apart=apart))


def live_at_end(values: Floats, micro_batches: Ints, *, last: bool, apart: bool = False) -> Floats:
    """Return the most that the `last` rank holds while a micro-batch is in the last virtual stage, where its forward
    pass is followed by its backward pass; or the first rank beside a micro-batch that has gone backward through its
    first virtual stage: [N], of `values` and `micro_batches` as `most_live` has them."""
    virtual_stages, ranks = values.shape[1:]
    held = values[:, :, ranks - 1 if last else 0]
    if last and not apart:  # a group of micro-batches waits in all others
        return np.asarray(ranks * held[:, :-1].sum(axis=1) + held[:, -1])
    if virtual_stages == 1:
        count = in_flight(ranks, 1, micro_batches, ranks - 1 if last else 0, apart=apart)
        return np.asarray(held[:, 0] * (count - (not last)))
    rounds = np.minimum(micro_batches // ranks, _ROUNDS)
    return _most(held, rounds, lambda count: _chunks_at_end(ranks, virtual_stages, count, last=last, apart=apart))


def _most(values: Floats, rounds: Ints, live_of: Callable[[int], Ints]) -> Floats:
    """Return the largest sum of `values` [N, V, …] over the chunks that are live at a time; `live_of` gives how many
    are [T, V, …], for so many `rounds` [N]."""
    most = np.empty((len(values), *values.shape[2:]))
    for count in distinct(rounds):
        rows = np.flatnonzero(rounds == count)
        live = live_of(int(count))
        sums = live[:, 0] * values[rows, None, 0]
        for chunk in range(1, values.shape[1]):
            sums = sums + live[:, chunk] * values[rows, None, chunk]
        most[rows] = sums.max(axis=1)
    return most


_ROUNDS = 3  # groups of P micro-batches, from which on more change nothing: warm-up is of less than two


@lru_cache(maxsize=256)
def live_chunks(ranks: int, virtual_stages: int, rounds: int, *, apart: bool = False) -> Ints:
    """Return how many micro-batches of each virtual stage a rank may hold at a time that may be its fullest, [T, v, P],
    under the interleaved schedule of `rounds` groups of P micro-batches, or zero bubble (`apart`).

    Before backward k a rank has done n = min(warmup + 1 + k, K v) forwards. Both take groups of P through the virtual
    stages, forwards from the first one on, backwards from the last. So what it holds is linear in k between the k at
    which either begins a group: one of these is the fullest, whatever a virtual stage keeps.
    """
    total, rank = rounds * ranks * virtual_stages, np.arange(ranks)
    warmup = _before_first(ranks, virtual_stages, rank, apart=apart)
    groups = np.arange(0, total + 1, ranks)[:, None]
    before = np.concatenate([groups + 0 * rank, groups - 1 - warmup, total - 1 - warmup[None]])
    before = np.clip(before, 0, total - 1)
    return _fullest(_live(ranks, virtual_stages, np.minimum(before + warmup + 1, total), before))


@lru_cache(maxsize=256)
def _chunks_at_end(ranks: int, virtual_stages: int, rounds: int, *, last: bool, apart: bool) -> Ints:
    """Return the same of one end alone, [T, v], at the times of `live_at_end`. The last rank puts off P - 1 gradients
    of weights where these are `apart`, the first none."""
    total, rank = rounds * ranks * virtual_stages, ranks - 1 if last else 0
    backward = np.arange(total)
    backward = backward[backward // ranks % virtual_stages == (0 if last else virtual_stages - 1)][:, None]
    warmup = _before_first(ranks, virtual_stages, rank, apart=apart) - rank * apart
    forwards = np.minimum(backward + warmup + 1, total)
    live = _live(ranks, virtual_stages, forwards, np.maximum(backward - rank * apart, 0))[:, :, 0]
    return _fullest(live - (np.arange(virtual_stages) == 0) * (not last))


def _live(ranks: int, virtual_stages: int, forwards: Ints, completed: Ints) -> Ints:
    """Return the micro-batches of each virtual stage that are live after so many `forwards` and backward passes that
    are `completed`, [T, ranks looked at] each, as [T, v, ranks looked at]."""
    chunk = np.arange(virtual_stages)[None, :, None]

    def done(passes: Ints, place: Ints) -> Ints:
        whole, rest = np.divmod(passes[:, None, :], ranks * virtual_stages)
        return np.asarray(whole * ranks + np.clip(rest - place * ranks, 0, ranks))

    return done(forwards, chunk) - done(completed, virtual_stages - 1 - chunk)


def _fullest(live: Ints) -> Ints:
    """Return the times at which no other holds at least as much of every virtual stage."""
    times = distinct_rows(live.reshape(len(live), -1))
    fullest = [row for row in times if ((times >= row).all(axis=1)).sum() == 1]
    return np.array(fullest).reshape(-1, *live.shape[1:])
