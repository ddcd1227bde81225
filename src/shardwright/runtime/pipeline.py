"""One step of a pipeline: forward and backward passes in the order of its schedule, with messages between stages.

The orders are those that the cost model simulates (`cost.schedule`). Each direction of messages has a process group of
its own, and the receive of an operation is posted before the operation ahead of it runs, so messages travel while a
rank computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from shardwright.cost.schedule import BACKWARD, FORWARD, Operation, Order, interleaved
from shardwright.runtime.groups import Layout, Purpose
from shardwright.runtime.model.chunk import Chunk, Observer, forward
from shardwright.runtime.moments import Moment, moment
from shardwright.runtime.places import Place
from shardwright.runtime.process_groups import ProcessGroups
from shardwright.runtime.sync import GradientSync
from shardwright.runtime.transfers import Transfer, transfers

Batch = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
"""Returns tokens and targets [micro_batch, sequence] of a micro-batch of this rank's copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One way of messages of a rank: its process group and the parts that it receives or sends."""

    group: Any
    parts: tuple[Transfer, ...]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A rank's part in the pipeline of its copy. `links` maps (kind, "in" or "out", wraps around) to a link; `shape` is
    that of an activation of this rank's positions; gradients are multiplied by `scale`."""

    place: Place
    chunks: tuple[Chunk, ...]
    operations: tuple[Operation, ...]
    links: Mapping[tuple[int, str, bool], Link]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    scale: float

    @property
    def stages(self) -> int:
        return self.place.depth * len(self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An operation, and when it ran: the moments (`moments.moment`) when its input was awaited, was there, and when it
    was done."""

    operation: Operation
    asked: Moment
    began: Moment
    ended: Moment


@dataclass(frozen=True, slots=True)
class _Incoming:
    buffer: torch.Tensor
    parts: list[tuple[Any, torch.Tensor, Transfer]]


def make_pipeline(
    layout: Layout,
    place: Place,
    chunks: Sequence[Chunk],
    groups: ProcessGroups,
    dtype: torch.dtype,
    device: torch.device,
) -> Pipeline:
    """Return the pipeline of a rank. Gradients are scaled to the mean over all tokens of the global batch."""
    plan = layout.plan
    length = plan.job.seq_len // (place.tensor_parallel if plan.sequence_parallel else 1)
    return Pipeline(
        place=place,
        chunks=tuple(chunks),
        operations=tuple(order_of(layout, place).operations(place.stage)),
        links=_links(layout, place, groups),
        shape=(plan.micro_batch, length, plan.model.hidden),
        dtype=dtype,
        device=device,
        scale=1.0 / plan.job.tokens_per_iteration,
    )


def order_of(layout: Layout, place: Place) -> Order:
    """Return the order of work of a place's pipeline."""
    return interleaved(place.depth, layout.plan.schedule.virtual_stages, place.micro_batches)


def run_step(
    pipeline: Pipeline,
    batch: Batch,
    sync: GradientSync,
    *,
    observe: Observer | None = None,
    record: Callable[[Event], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> torch.Tensor:
    """Run all micro-batches of a step and return the summed loss (zero on ranks without the head).

    `sync` is begun and told which passes are last; finishing it is left to the caller. `record` is given every
    operation with its times, `note` is told what the rank waits for or does.
    """
    say = note or (lambda _: None)
    kept: dict[tuple[int, int], tuple[torch.Tensor | None, torch.Tensor]] = {}
    arriving: dict[Operation, _Incoming] = {}
    leaving: list[tuple[Any, torch.Tensor]] = []
    left = [pipeline.place.micro_batches] * len(pipeline.chunks)
    total = torch.zeros((), dtype=torch.float32, device=pipeline.device)
    operations = pipeline.operations
    sync.begin()
    _post(pipeline, operations[0], arriving)
    for number, operation in enumerate(operations):
        kind, stage, micro_batch = operation
        asked = moment(pipeline.device)
        say(f"waiting for a message, {_words(operation)}")
        message = _taken(pipeline, operation, arriving)
        if number + 1 < len(operations):
            _post(pipeline, operations[number + 1], arriving)
        say(f"computing, {_words(operation)}")
        began = moment(pipeline.device)
        index = stage // pipeline.place.depth
        if kind == FORWARD:
            out = _forward(pipeline, index, micro_batch, message, batch, kept, observe)
            if pipeline.chunks[index].head:
                total += out.detach()
            else:
                _send(pipeline, operation, out.detach(), leaving)
        else:
            left[index] -= 1
            if not left[index]:
                sync.last_micro_batch(index)
            gradient = _backward(pipeline, index, micro_batch, message, kept)
            if not left[index]:
                sync.chunk_done(index)
            if gradient is not None:
                _send(pipeline, operation, gradient, leaving)
        if record is not None:
            record(Event(operation=operation, asked=asked, began=began, ended=moment(pipeline.device)))
    say("waiting until messages are sent")
    for work, _ in leaving:
        work.wait()
    return total


def _forward(
    pipeline: Pipeline,
    index: int,
    micro_batch: int,
    message: torch.Tensor | None,
    batch: Batch,
    kept: dict[tuple[int, int], tuple[torch.Tensor | None, torch.Tensor]],
    observe: Observer | None,
) -> torch.Tensor:
    chunk = pipeline.chunks[index]
    first = message is None
    tokens, targets = batch(micro_batch) if first or chunk.head else (None, None)
    x = tokens if message is None else message.requires_grad_()
    assert x is not None, "the first stage has tokens, every other a message"
    out = forward(chunk, x, targets, observe)
    kept[index, micro_batch] = (None if first else x, out)
    return out


def _backward(
    pipeline: Pipeline,
    index: int,
    micro_batch: int,
    message: torch.Tensor | None,
    kept: dict[tuple[int, int], tuple[torch.Tensor | None, torch.Tensor]],
) -> torch.Tensor | None:
    """Run a backward pass and return the gradient for the stage before, None at the first."""
    x, out = kept.pop((index, micro_batch))
    if message is None:
        message = torch.full((), pipeline.scale, dtype=out.dtype, device=out.device)
    if out.grad_fn is None:  # a stage without layers hands its input on
        return message
    torch.autograd.backward(out, message)
    return None if x is None else x.grad


def _post(pipeline: Pipeline, operation: Operation, arriving: dict[Operation, _Incoming]) -> None:
    """Post the receives of an operation that waits for a message."""
    link = _link_in(pipeline, operation)
    if link is None:
        return
    buffer = torch.empty(pipeline.shape, dtype=pipeline.dtype, device=pipeline.device)
    parts = []
    for part in link.parts:
        start, stop = part.into
        target = buffer if stop - start == pipeline.shape[1] else buffer[:, start:stop].contiguous()
        work = dist.irecv(target, part.source, group=link.group, tag=_tag(pipeline, operation))
        parts.append((work, target, part))
    arriving[operation] = _Incoming(buffer, parts)


def _taken(pipeline: Pipeline, operation: Operation, arriving: dict[Operation, _Incoming]) -> torch.Tensor | None:
    """Return the message of an operation once it is there, None where it needs none."""
    incoming = arriving.pop(operation, None)
    if incoming is None:
        return None
    for work, target, part in incoming.parts:
        work.wait()
        if target is not incoming.buffer:
            incoming.buffer[:, part.into[0] : part.into[1]] = target
    return incoming.buffer


def _send(
    pipeline: Pipeline, operation: Operation, message: torch.Tensor, leaving: list[tuple[Any, torch.Tensor]]
) -> None:
    """Send the result of an operation to the stage that waits for it; forget what has been sent before."""
    kind, stage, micro_batch = operation
    following = Operation(kind, stage + 1 if kind == FORWARD else stage - 1, micro_batch)
    wraps = pipeline.place.stage == (pipeline.place.depth - 1 if kind == FORWARD else 0)
    link = pipeline.links[kind, "out", wraps]
    leaving[:] = [(work, tensor) for work, tensor in leaving if not work.is_completed()]
    for part in link.parts:
        piece = message[:, part.part[0] : part.part[1]].contiguous()
        work = dist.isend(piece, part.target, group=link.group, tag=_tag(pipeline, following))
        leaving.append((work, piece))


def _link_in(pipeline: Pipeline, operation: Operation) -> Link | None:
    kind, stage, _ = operation
    if stage == (0 if kind == FORWARD else pipeline.stages - 1):
        return None
    wraps = pipeline.place.stage == (0 if kind == FORWARD else pipeline.place.depth - 1)
    return pipeline.links[kind, "in", wraps]


def _tag(pipeline: Pipeline, operation: Operation) -> int:
    return operation.micro_batch * pipeline.stages + operation.virtual_stage


def _words(operation: Operation) -> str:
    what = "forward" if operation.kind == FORWARD else "backward"
    return f"{what} of micro-batch {operation.micro_batch} in virtual stage {operation.virtual_stage}"


def _links(layout: Layout, place: Place, groups: ProcessGroups) -> dict[tuple[int, str, bool], Link]:
    """Return the links of a rank: activations go to the next stage, gradients to the one before; with virtual stages
    the ends are neighbours too."""
    plan, stages = layout.plan, layout.pipelines[place.pipeline]
    depth, ring = place.depth, plan.schedule.virtual_stages > 1
    if depth == 1:
        return {}
    everyone = tuple(sorted(rank for ranks in stages for rank in ranks))
    found = {}
    for kind, step in ((FORWARD, 1), (BACKWARD, -1)):
        for way, source in (("out", place.stage), ("in", place.stage - step)):
            target = source + step
            wraps = (source if way == "in" else target) not in range(depth)
            if wraps and not ring:
                continue
            messages = transfers(
                stages[source % depth], stages[target % depth], plan.job.seq_len, sharded=plan.sequence_parallel
            )
            mine = tuple(m for m in messages if (m.source if way == "out" else m.target) == place.rank)
            name: Purpose = "forward" if kind == FORWARD else "backward"
            if wraps:
                name = "forward wrap" if kind == FORWARD else "backward wrap"
            found[kind, way, wraps] = Link(group=groups.find(name, everyone), parts=mine)
    return found
