"""One step of a pipeline: forward and backward passes in the order of its schedule, with messages between stages.

The orders are those that the cost model simulates (`cost.pipeline.schedule`). The receive of an operation is posted
before the operation ahead of it runs, so messages travel while a rank computes.

Moments of a rank's work are of the process on a CPU, of the device's own queue on a GPU, which it runs ahead of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from shardwright.cost.pipeline.schedule import FORWARD, WEIGHTS, WORDS, Operation, Order, order_of_schedule
from shardwright.records import record
from shardwright.runtime.layout.groups import Layout, Place
from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.model.attention import documents_of
from shardwright.runtime.model.chunk import Chunk, Observer, forward
from shardwright.runtime.model.products import Later
from shardwright.runtime.step.channels import Channels, Incoming, Outgoing, make_channels, post, send, taken
from shardwright.runtime.step.sync import GradientSync

Moment = Any  # seconds of `time.perf_counter`, or a CUDA event


def moment(device: torch.device) -> Moment:
    """Return the moment at which the device has done what it was given so far."""
    if device.type != "cuda":
        return time.perf_counter()
    make: Any = torch.cuda.Event
    event = make(enable_timing=True)
    event.record()
    return event


def seconds_between(begin: Moment, end: Moment) -> float:
    """Return the seconds from one moment to another; both must be over."""
    if isinstance(begin, float):
        return float(end - begin)
    return float(begin.elapsed_time(end)) / 1e3


# Returns tokens and targets [micro_batch, sequence] of a micro-batch of this rank's copy, at all positions.
Batch = Callable[[int], tuple[torch.Tensor, torch.Tensor]]

# By virtual stage and micro-batch what its backward pass needs: its input, none of the first stage, and where the
# gradient of its output goes, none where there is no gradient. The output itself is the next stage's.
Kept = dict[tuple[int, int], tuple[torch.Tensor | None, GradientEdge | None]]


@record(slots=False)
class RankPipeline:
    """A rank's part in the pipeline of its copy. Gradients are multiplied by `scale`, beside that of the loss. `later`
    is what the backward pass under way leaves for the gradients of weights, where they are apart."""

    place: Place
    chunks: tuple[Chunk, ...]
    operations: tuple[Operation, ...]
    channels: Channels
    device: torch.device
    scale: float
    later: Later | None = None


@record
class Event:
    """An operation, and when it ran: the moments (`moments.moment`) when its input was awaited, was there, and when it
    was done."""

    operation: Operation
    asked: Moment
    began: Moment
    ended: Moment


def make_pipeline(
    layout: Layout,
    place: Place,
    chunks: Sequence[Chunk],
    groups: ProcessGroups,
    dtype: torch.dtype,
    device: torch.device,
    later: Later | None = None,
) -> RankPipeline:
    """Return the pipeline of a rank. Gradients are scaled to the mean over all tokens of the global batch."""
    return RankPipeline(
        place=place,
        chunks=tuple(chunks),
        operations=tuple(order_of(layout, place).operations(place.stage)),
        channels=make_channels(layout, place, groups, dtype, device),
        device=device,
        scale=1.0 / layout.plan.job.tokens_per_iteration,
        later=later,
    )


def order_of(layout: Layout, place: Place) -> Order:
    """Return the order of work of a place's pipeline."""
    schedule = layout.plan.schedule
    return order_of_schedule(schedule.kind, place.depth, schedule.virtual_stages, place.micro_batches)


def run_step(
    pipeline: RankPipeline,
    batch: Batch,
    sync: GradientSync,
    *,
    loss_scale: float = 1.0,
    observe: Observer | None = None,
    record: Callable[[Event], None] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> torch.Tensor:
    """Run all micro-batches of a step and return the summed loss (zero on ranks without the head).

    Gradients are those of the loss times `loss_scale`. `sync` is begun and told which passes are last; finishing it is
    left to the caller. `record` is given every operation with its times, `note` is told what the rank waits for or
    does.
    """
    kept: Kept = {}
    put_off: dict[tuple[int, int], Later] = {}
    leaving: list[Outgoing] = []
    left = [pipeline.place.micro_batches] * len(pipeline.chunks)
    total = torch.zeros((), dtype=torch.float32, device=pipeline.device)
    sync.begin()
    for operation, asked, message in _with_messages(pipeline, pipeline.operations, leaving, note):
        began = moment(pipeline.device)
        kind, stage, micro_batch = operation
        index = stage // pipeline.place.depth
        if kind == FORWARD:
            out = _forward(pipeline, index, micro_batch, message, batch, kept, observe)
            if pipeline.chunks[index].head:
                total += out.detach()
            else:
                send(pipeline.channels, operation, out.detach(), leaving)
        else:
            completing = kind == WEIGHTS or pipeline.later is None
            left[index] -= completing
            if completing and not left[index]:
                sync.last_micro_batch(index)
            if kind == WEIGHTS:
                for add in put_off.pop((index, micro_batch), ()):
                    add()
            else:
                gradient = _backward(pipeline, index, micro_batch, message, kept, put_off, loss_scale)
                if gradient is not None:
                    send(pipeline.channels, operation, gradient, leaving)
            if completing:
                _complete(sync, index, last=not left[index])
        if record is not None:
            record(Event(operation=operation, asked=asked, began=began, ended=moment(pipeline.device)))
    return total


def run_forward(pipeline: RankPipeline, batch: Batch, note: Callable[[str], None] = lambda _: None) -> torch.Tensor:
    """Run the forward passes of all micro-batches alone, in the order in which a step has them, and return the summed
    loss (zero on ranks without the head)."""
    leaving: list[Outgoing] = []
    total = torch.zeros((), dtype=torch.float32, device=pipeline.device)
    operations = [operation for operation in pipeline.operations if operation.kind == FORWARD]
    for operation, _, message in _with_messages(pipeline, operations, leaving, note):
        index = operation.virtual_stage // pipeline.place.depth
        out = _forward(pipeline, index, operation.micro_batch, message, batch, {}, None)
        if pipeline.chunks[index].head:
            total += out
        else:
            send(pipeline.channels, operation, out, leaving)
    return total


def _with_messages(
    pipeline: RankPipeline, operations: Sequence[Operation], leaving: Sequence[Outgoing], note: Callable[[str], None]
) -> Iterator[tuple[Operation, Moment, torch.Tensor | None]]:
    """Yield operations, each with the moment at which its message was awaited, and the message. The receive of one is
    posted before the one ahead of it runs. After the last, wait until all that is `leaving` has left."""
    arriving: dict[Operation, Incoming] = {}
    post(pipeline.channels, operations[0], arriving)
    for operation, following in zip_longest(operations, operations[1:]):
        asked = moment(pipeline.device)
        note(f"waiting for a message, {_words(operation)}")
        message = taken(operation, arriving)
        if following is not None:
            post(pipeline.channels, following, arriving)
        note(f"computing, {_words(operation)}")
        yield operation, asked, message
    note("waiting until messages are sent")
    for work, _ in leaving:
        work.wait()


def _forward(
    pipeline: RankPipeline,
    index: int,
    micro_batch: int,
    message: torch.Tensor | None,
    batch: Batch,
    kept: Kept,
    observe: Observer | None,
) -> torch.Tensor:
    chunk = pipeline.chunks[index]
    first = message is None
    wanted = first or chunk.head or chunk.end is not None
    tokens, targets = batch(micro_batch) if wanted else (None, None)
    documents = None if tokens is None else documents_of(tokens, chunk.end)
    if chunk.context.size > 1 and tokens is not None and targets is not None:
        tokens, targets = tokens[:, chunk.positions], targets[:, chunk.positions]
    x = tokens if message is None else message.requires_grad_(torch.is_grad_enabled())
    assert x is not None, "the first stage has tokens, every other a message"
    out = forward(chunk, x, targets, observe, documents)
    kept[index, micro_batch] = (None if first else x, None if out.grad_fn is None else get_gradient_edge(out))
    return out


def _backward(
    pipeline: RankPipeline,
    index: int,
    micro_batch: int,
    message: torch.Tensor | None,
    kept: Kept,
    put_off: dict[tuple[int, int], Later],
    loss_scale: float,
) -> torch.Tensor | None:
    """Run a backward pass, put off what it leaves for later, and return the gradient for the stage before, None at the
    first."""
    x, edge = kept.pop((index, micro_batch))
    if message is None:
        message = torch.full((), pipeline.scale * loss_scale, dtype=torch.float32, device=pipeline.device)
    if edge is None:  # a stage without layers hands its input on; what is before all adapters has no gradient
        return None if x is None else message
    torch.autograd.backward(edge, message)
    if pipeline.later is not None:
        put_off[index, micro_batch] = pipeline.later.copy()
        pipeline.later.clear()
    return None if x is None else x.grad


def _complete(sync: GradientSync, index: int, *, last: bool) -> None:
    """Say that all gradients of a micro-batch are there; `last`: of the step's last in this chunk."""
    sync.pass_done()
    if last:
        sync.chunk_done(index)


def _words(operation: Operation) -> str:
    return f"{WORDS[operation.kind]} of micro-batch {operation.micro_batch} in virtual stage {operation.virtual_stage}"
