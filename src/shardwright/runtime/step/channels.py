"""Messages between the stages of a pipeline: activations forward, gradients backward.

Each way from a stage to a neighbour has a process group of its own, also that around from the last one to the first
with virtual stages. So messages of a group come in the order in which they are sent, and none waits for one from
another stage: NCCL takes the operations of a group one after another (`ProcessGroupNCCL::pointToPoint`, where a device
is bound to the group).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from shardwright.cost.pipeline.schedule import BACKWARD, FORWARD, WEIGHTS, Operation
from shardwright.records import record
from shardwright.runtime.layout.groups import Layout, Place, Purpose
from shardwright.runtime.layout.process_groups import ProcessGroups

Outgoing = tuple[Any, torch.Tensor]  # a send under way, and what it sends, which must live until it is done


@record
class Link:
    """One way of messages of a rank: its process group and the parts that it receives or sends."""

    group: Any
    parts: tuple[Transfer, ...]


@record
class Channels:
    """All ways of messages of a rank. `links` maps (kind, "in" or "out", wraps around) to a link, `stages` counts
    virtual stages; `shape` is that of an activation at this rank's positions."""

    place: Place
    stages: int
    links: Mapping[tuple[int, str, bool], Link]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@record(kw_only=False)
class Incoming:
    """A message on its way, and the receives of its parts."""

    buffer: torch.Tensor
    parts: list[tuple[Any, torch.Tensor, Transfer]]


def make_channels(
    layout: Layout, place: Place, groups: ProcessGroups, dtype: torch.dtype, device: torch.device
) -> Channels:
    plan = layout.plan
    length = plan.job.seq_len // place.context_parallel // (place.tensor_parallel if plan.sequence_parallel else 1)
    return Channels(
        place=place,
        stages=place.depth * plan.schedule.virtual_stages,
        links=_links(layout, place, groups),
        shape=(plan.micro_batch, length, plan.model.hidden),
        dtype=dtype,
        device=device,
    )


def post(channels: Channels, operation: Operation, arriving: dict[Operation, Incoming]) -> None:
    """Post the receives of an operation that waits for a message."""
    link = _link_in(channels, operation)
    if link is None:
        return
    buffer = torch.empty(channels.shape, dtype=channels.dtype, device=channels.device)
    parts = []
    for part in link.parts:
        start, stop = part.into
        target = buffer if stop - start == channels.shape[1] else buffer[:, start:stop].contiguous()
        work = dist.irecv(target, part.source, group=link.group, tag=_tag(channels, operation))
        parts.append((work, target, part))
    arriving[operation] = Incoming(buffer, parts)


def taken(operation: Operation, arriving: dict[Operation, Incoming]) -> torch.Tensor | None:
    """Return the message of an operation once it is there, None where it needs none."""
    incoming = arriving.pop(operation, None)
    if incoming is None:
        return None
    for work, target, part in incoming.parts:
        work.wait()
        if target is not incoming.buffer:
            incoming.buffer[:, part.into[0] : part.into[1]] = target
    return incoming.buffer


def send(channels: Channels, operation: Operation, message: torch.Tensor, leaving: list[Outgoing]) -> None:
    """Send the result of an operation to the stage that waits for it; forget what has been sent before."""
    kind, stage, micro_batch = operation
    following = Operation(kind, stage + 1 if kind == FORWARD else stage - 1, micro_batch)
    wraps = channels.place.stage == (channels.place.depth - 1 if kind == FORWARD else 0)
    link = channels.links[kind, "out", wraps]
    leaving[:] = [(work, tensor) for work, tensor in leaving if not work.is_completed()]
    for part in link.parts:
        piece = message[:, part.part[0] : part.part[1]].contiguous()
        work = dist.isend(piece, part.target, group=link.group, tag=_tag(channels, following))
        leaving.append((work, piece))


def _link_in(channels: Channels, operation: Operation) -> Link | None:
    kind, stage, _ = operation
    if kind == WEIGHTS or stage == (0 if kind == FORWARD else channels.stages - 1):
        return None
    wraps = channels.place.stage == (0 if kind == FORWARD else channels.place.depth - 1)
    return channels.links[kind, "in", wraps]


def _tag(channels: Channels, operation: Operation) -> int:
    return operation.micro_batch * channels.stages + operation.virtual_stage


def _links(layout: Layout, place: Place, groups: ProcessGroups) -> dict[tuple[int, str, bool], Link]:
    """Return the links of a rank: activations go to the next stage, gradients to the one before; with virtual stages
    the ends are neighbours too."""
    plan, stages = layout.plan, layout.pipelines[place.pipeline]
    depth, ring = place.depth, plan.schedule.virtual_stages > 1
    if depth == 1:
        return {}
    links = {}
    for kind, step in ((FORWARD, 1), (BACKWARD, -1)):
        for way, source in (("out", place.stage), ("in", place.stage - step)):
            target = source + step
            wraps = (source if way == "in" else target) not in range(depth)
            if wraps and not ring:
                continue
            length = plan.job.seq_len // place.context_parallel
            senders, receivers = stages[source % depth], stages[target % depth]
            messages = transfers(senders, receivers, length, sharded=plan.sequence_parallel)
            mine = tuple(m for m in messages if (m.source if way == "out" else m.target) == place.rank)
            name: Purpose = "forward" if kind == FORWARD else "backward"
            links[kind, way, wraps] = Link(group=groups.find(name, (*senders, *receivers)), parts=mine)
    return links


@record
class Transfer:
    """One message: from rank to rank, `part` [start, stop) of the sender's sequence positions, to be put at `into` of
    the receiver's."""

    source: int
    target: int
    part: tuple[int, int]
    into: tuple[int, int]


def transfers(sources: Sequence[int], targets: Sequence[int], seq_len: int, *, sharded: bool) -> tuple[Transfer, ...]:
    """Return the messages that carry an activation of `seq_len` positions from one stage to the next.

    Without sequence parallelism every rank of a stage has all positions, and each target takes them from the source at
    the same relative place. With it (`sharded`), rank r of t has the r-th of t equal parts of the positions.
    """
    if not sharded:
        whole = (0, seq_len)
        return tuple(
            Transfer(source=sources[index * len(sources) // len(targets)], target=target, part=whole, into=whole)
            for index, target in enumerate(targets)
        )
    sent, taken = seq_len // len(sources), seq_len // len(targets)
    messages = []
    for i, source in enumerate(sources):
        for j, target in enumerate(targets):
            start, stop = max(i * sent, j * taken), min((i + 1) * sent, (j + 1) * taken)
            if start < stop:
                part, into = (start - i * sent, stop - i * sent), (start - j * taken, stop - j * taken)
                messages.append(Transfer(source=source, target=target, part=part, into=into))
    return tuple(messages)
