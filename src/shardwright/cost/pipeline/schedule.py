"""Orders of work of pipeline schedules: which rank runs which operation after which.

A pipeline of P ranks holds P * v virtual stages; virtual stage j = chunk * P + rank. An operation is the forward or
the backward pass of one micro-batch through one virtual stage. Each rank runs its operations in a fixed order, and
an operation also waits for a message: a forward for the activation of stage j - 1, a backward for the gradient of
stage j + 1. `Order` writes such an order down as a grid in which a message always comes from an earlier row, so a
simulator can go through it row by row for any number of candidates at once.

1F1B and interleaved 1F1B are systolic: number a rank's forwards (and, separately, its backwards) 0, 1, 2, … in the
order in which it runs them. With forward k of rank i in row 2k + a*i and backward k in row 2(k + warmup_i) + a*i + 1,
every message comes from the neighbour exactly `a` rows above (a = 1 for 1F1B, 2 for the interleaved schedule, where
the ranks form a ring), and the middle of the grid repeats. It is therefore stored once.

Zero bubble (ZB-H1 of Qi et al., arXiv 2401.10241 §2.2; with virtual stages ZB1P) splits each backward in the gradient
of the input, for which the stage before waits, and that of the weights, for which nobody does: these run later and fill
the wait. Its warm-up is the shortest that there is, P - 1 - i + (v - 1) * P, and rank i puts off i gradients of
weights, so that no rank holds more micro-batches than rank 0 of 1F1B. Forward k stands in row 3k + i, the halves of
backward k in rows 3(k + warmup_i) + i + 1 and 3(k + warmup_i + i) + i + 2.

Source of the orders: NVIDIA/Megatron-LM@00611e6:megatron/core/pipeline_parallel/schedules.py
(get_pp_rank_microbatches, get_schedule_table); of zero bubble pytorch/pytorch@v2.13.0:
torch/distributed/pipelining/schedules.py (ScheduleInterleavedZeroBubble).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardwright.arrays import Ints
from shardwright.errors import bad
from shardwright.records import record

FORWARD, BACKWARD, WEIGHTS = 0, 1, 2  # numeric
WORDS = ("forward", "backward", "gradients of weights")  # of each

# The least number of micro-batches in one repetition of 1F1B's middle. At least P, so that a repetition holds the
# whole period of the state: a cycle of waits between ranks i and k takes k - i + 1 micro-batches.
_BODY_MICRO_BATCHES = 24


class Operation(NamedTuple):
    """One pass of a micro-batch through a virtual stage; `kind` is FORWARD, BACKWARD or, where the backward pass leaves
    the gradients of weights for later, WEIGHTS."""

    kind: int
    virtual_stage: int
    micro_batch: int


@record
class Repeat:
    """Rows `start` to `stop` of a grid run `times` times in all, each time with micro-batches `stride` later.

    The rows are themselves copies of their first `unit` rows, but for the micro-batches.
    """

    start: int
    stop: int
    times: int
    stride: int
    unit: int


@record(eq=False)
class Order:
    """An order of work as a grid of rows by ranks.

    `code` [rows, P] is kind * V + j for an operation on virtual stage j (V = P * v), kinds * V for nothing.
    `micro_batch` [rows, P] counts from 0 (-1 for nothing). `source` [rows, P] finds the message that an operation
    waits for among the `depth` rows above, as an index into these rows flattened (0 where there is no message).
    `repeat` is the part of the grid that stands for several copies of itself, if any.
    """

    ranks: int
    virtual_stages: int
    micro_batches: int
    code: Ints
    micro_batch: Ints
    source: Ints
    depth: int
    repeat: Repeat | None = None
    kinds: int = 2

    @property
    def stages(self) -> int:
        return self.ranks * self.virtual_stages

    def expanded(self) -> Order:
        """Return the same order with every repetition written out."""
        if self.repeat is None:
            return self
        body, rows = self.repeat, np.arange(len(self.code))
        copies = np.tile(rows[body.start : body.stop], body.times)
        index = np.concatenate([rows[: body.start], copies, rows[body.stop :]])
        later = np.zeros(len(index), dtype=np.intp)
        later[body.start : body.start + len(copies)] = np.repeat(np.arange(body.times), body.stop - body.start)
        later[body.start + len(copies) :] = body.times - 1
        idle = self.code[index] == self.kinds * self.stages
        micro_batch = np.where(idle, -1, self.micro_batch[index] + body.stride * later[:, None])
        return replace(self, code=self.code[index], micro_batch=micro_batch, source=self.source[index], repeat=None)

    def operations(self, rank: int) -> list[Operation]:
        """Return the operations of `rank` in the order in which it runs them."""
        full = self.expanded()
        code, micro_batch = full.code[:, rank], full.micro_batch[:, rank]
        busy = code < self.kinds * self.stages
        kinds, stages = np.divmod(code[busy], self.stages)
        columns = kinds.tolist(), stages.tolist(), micro_batch[busy].tolist()
        return [Operation(*row) for row in zip(*columns, strict=True)]


def one_f_one_b(ranks: int, micro_batches: int) -> Order:
    """Return 1F1B: rank i runs min(K, P - 1 - i) forwards, then a forward and a backward in turn, then backwards."""
    _require_positive(ranks, 1, micro_batches)
    stride = max(_BODY_MICRO_BATCHES, ranks)
    times = max(1, (micro_batches - ranks + 1) // stride)
    base = _systolic(ranks, 1, micro_batches - (times - 1) * stride)
    start = 2 * (ranks - 1)
    return _repeated(base, Repeat(start=start, stop=start + 2 * stride, times=times, stride=stride, unit=2))


def interleaved(ranks: int, virtual_stages: int, micro_batches: int) -> Order:
    """Return Megatron-LM's interleaved 1F1B with micro-batch groups of P; one virtual stage a rank gives 1F1B.

    Rank i takes groups of P micro-batches through its chunks in turn (backwards: through the chunks in reverse), and
    runs min(K * v, 2 * (P - 1 - i) + (v - 1) * P) forwards before its first pair of a forward and a backward.
    Raises SpecError where K is not a multiple of P.
    """
    if virtual_stages == 1:
        return one_f_one_b(ranks, micro_batches)
    _require_positive(ranks, virtual_stages, micro_batches)
    _require_whole_groups(ranks, virtual_stages, micro_batches)
    start = 2 * int(warmup_forwards(ranks, virtual_stages, 0))
    rows = 2 * ranks * virtual_stages
    times = max(1, (2 * micro_batches * virtual_stages - start) // rows)
    base = _systolic(ranks, virtual_stages, micro_batches - (times - 1) * ranks)
    return _repeated(base, Repeat(start=start, stop=start + rows, times=times, stride=ranks, unit=rows))


def zero_bubble(ranks: int, virtual_stages: int, micro_batches: int) -> Order:
    """Return 1F1B, or the interleaved schedule, with the gradients of weights apart: a forward, a backward for the
    stage before and the oldest gradients of weights in turn, after i backwards without on rank i.

    Raises SpecError where there are virtual stages and K is not a multiple of P.
    """
    _require_positive(ranks, virtual_stages, micro_batches)
    _require_whole_groups(ranks, virtual_stages, micro_batches)
    stages = ranks * virtual_stages
    start, group = 3 * (stages - 1) + ranks - 1, 1 if virtual_stages == 1 else ranks
    stride = max(_BODY_MICRO_BATCHES, ranks) if virtual_stages == 1 else ranks
    times = max(1, (micro_batches - -(-start // (3 * virtual_stages * group)) * group) // stride)
    base = _split(ranks, virtual_stages, micro_batches - (times - 1) * stride)
    rows = 3 * virtual_stages * stride
    return _repeated(
        base, Repeat(start=start, stop=start + rows, times=times, stride=stride, unit=3 * virtual_stages * group)
    )


@lru_cache(maxsize=32)
def _split(ranks: int, virtual_stages: int, micro_batches: int) -> Order:
    """Return zero bubble as the grid that the module's docstring describes."""
    stages, count = ranks * virtual_stages, micro_batches * virtual_stages
    rank, k = np.meshgrid(np.arange(ranks), np.arange(count))
    chunk, micro_batch = k // ranks % virtual_stages, k // stages * ranks + k % ranks
    if virtual_stages == 1:
        micro_batch = k
    warmup = zero_bubble_warmup(ranks, virtual_stages, rank)
    forward_row = 3 * k + rank
    backward_row, weights_row = forward_row + 3 * warmup + 1, forward_row + 3 * (warmup + rank) + 2
    code, index, source = _empty((int(weights_row.max()) + 1, ranks), 3 * stages)
    back = (virtual_stages - 1 - chunk) * ranks + rank
    code[forward_row, rank] = chunk * ranks + rank
    code[backward_row, rank], code[weights_row, rank] = stages + back, 2 * stages + back
    index[forward_row, rank] = index[backward_row, rank] = index[weights_row, rank] = micro_batch
    # A forward follows one of the row above, a backward one of two rows above; round the ring it is more.
    depth = 2 if virtual_stages == 1 else 2 * ranks + 1
    before, after = np.where(rank > 0, 1, 2 * ranks + 1), np.where(rank < ranks - 1, 2, ranks + 2)
    source[forward_row, rank] = (depth - np.minimum(before, depth)) * ranks + (rank - 1) % ranks
    source[backward_row, rank] = (depth - np.minimum(after, depth)) * ranks + (rank + 1) % ranks
    return Order(
        ranks=ranks, virtual_stages=virtual_stages, micro_batches=micro_batches,
        code=code, micro_batch=index, source=source, depth=depth, kinds=3,
    )  # fmt: skip


def order_of_schedule(kind: str, ranks: int, virtual_stages: int, micro_batches: int) -> Order:
    """Return the order of a pipeline's schedule by its name in plans (`plans.plan.Schedule`)."""
    return (zero_bubble if kind == "zero-bubble" else interleaved)(ranks, virtual_stages, micro_batches)


def warmup_forwards(ranks: Ints | int, virtual_stages: Ints | int, rank: Ints | int) -> Ints:
    """Return how many forwards a rank runs before its first pair, if there are enough micro-batches (elementwise)."""
    p, v, i = np.asarray(ranks), np.asarray(virtual_stages), np.asarray(rank)
    return np.asarray(np.where(v == 1, p - 1 - i, 2 * (p - 1 - i) + (v - 1) * p), dtype=np.intp)


def zero_bubble_warmup(ranks: Ints | int, virtual_stages: Ints | int, rank: Ints | int) -> Ints:
    """Return the same under zero bubble: the fewest that a first backward needs (elementwise)."""
    return np.asarray(np.asarray(ranks) * virtual_stages - 1 - rank, dtype=np.intp)


@lru_cache(maxsize=32)
def _systolic(ranks: int, virtual_stages: int, micro_batches: int) -> Order:
    """Return 1F1B (one virtual stage) or interleaved 1F1B as the grid that the module's docstring describes."""
    slope, stages = (1 if virtual_stages == 1 else 2), ranks * virtual_stages
    count = micro_batches * virtual_stages
    rank, k = np.meshgrid(np.arange(ranks), np.arange(count))
    chunk = k // ranks % virtual_stages
    micro_batch = k // stages * ranks + k % ranks if virtual_stages > 1 else k
    forward_row = 2 * k + slope * rank
    backward_row = forward_row + 2 * warmup_forwards(ranks, virtual_stages, rank) + 1
    code, index, source = _empty((int(backward_row.max()) + 1, ranks), 2 * stages)
    code[forward_row, rank] = chunk * ranks + rank
    code[backward_row, rank] = stages + (virtual_stages - 1 - chunk) * ranks + rank
    index[forward_row, rank] = index[backward_row, rank] = micro_batch
    source[forward_row, rank], source[backward_row, rank] = (rank - 1) % ranks, (rank + 1) % ranks
    return Order(
        ranks=ranks, virtual_stages=virtual_stages, micro_batches=micro_batches,
        code=code, micro_batch=index, source=source, depth=slope,
    )  # fmt: skip


def _repeated(base: Order, repeat: Repeat) -> Order:
    if repeat.times == 1:
        return base
    return replace(base, micro_batches=base.micro_batches + (repeat.times - 1) * repeat.stride, repeat=repeat)


def _require_positive(ranks: int, virtual_stages: int, micro_batches: int) -> None:
    for name, value in (
        ("pipeline ranks", ranks), ("virtual stages", virtual_stages), ("micro-batches", micro_batches)
    ):  # fmt: skip
        if value < 1:
            raise bad("schedule", f"the number of {name} is {value}", "give at least 1")


def _require_whole_groups(ranks: int, virtual_stages: int, micro_batches: int) -> None:
    if virtual_stages > 1 and micro_batches % ranks:
        raise bad(
            "schedule",
            f"the interleaved schedule cannot run {micro_batches} micro-batches on {ranks} pipeline ranks",
            f"make the number of micro-batches a multiple of {ranks}, or use the 1f1b schedule",
        )


def _empty(shape: tuple[int, int], idle: int) -> tuple[Ints, Ints, Ints]:
    return np.full(shape, idle, dtype=np.intp), np.full(shape, -1, dtype=np.intp), np.zeros(shape, dtype=np.intp)
