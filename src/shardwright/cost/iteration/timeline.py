"""One iteration of a plan as events in time: passes of every stage, then synchronisation and update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shardwright.cost.iteration.mixed import Mixed, pipeline_timeline
from shardwright.cost.pipeline.schedule import FORWARD
from shardwright.plans.plan import Plan

Kind = Literal["forward", "recompute", "backward", "synchronise", "optimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that stage `stage` of replicas `replica` does, in seconds from the start of the iteration. A pass has a
    micro-batch and a virtual stage, other events have -1."""

    replica: int
    stage: int
    kind: Kind
    start_seconds: float
    end_seconds: float
    micro_batch: int = -1
    virtual_stage: int = -1


def events(plan: Plan, found: Mixed) -> Iterator[Event]:
    """Yield the events of the iteration `found` of a legal plan, replica by replica; equal copies are one replica."""
    for number in range(len(plan.replicas)):
        yield from pass_events(plan, found, number)
        yield from closing_events(plan, found, number)


def pass_events(plan: Plan, found: Mixed, number: int) -> Iterator[Event]:
    """Yield the passes of a replica; a backward pass that computes again what was not kept begins with that."""
    replica, times = plan.replicas[number], found.replicas[number]
    when = pipeline_timeline(plan, replica, times)
    chunk = when.virtual_stage // len(replica.stages)
    again = times.stages.recompute[0][chunk, when.rank]
    columns = (when.rank, when.kind, when.start_seconds, when.end_seconds, again, when.micro_batch, chunk)
    for rank, kind, start, end, repeated, micro, virtual in zip(*(each.tolist() for each in columns), strict=True):
        middle = start if kind == FORWARD else start + repeated
        parts: list[tuple[Kind, float, float]] = [("forward" if kind == FORWARD else "backward", middle, end)]
        if middle > start:
            parts.insert(0, ("recompute", start, middle))
        for name, begin, stop in parts:
            yield Event(
                replica=number,
                stage=rank,
                kind=name,
                start_seconds=begin,
                end_seconds=stop,
                micro_batch=micro,
                virtual_stage=virtual,
            )


def closing_events(plan: Plan, found: Mixed, number: int) -> Iterator[Event]:
    """Yield what follows the pipeline of a replica: communication between replicas that it does not hide, and
    then the gradient norm and the update, which begin when the slowest replica is done."""
    times, longest = found.replicas[number], max(replica.busy_seconds for replica in found.replicas)
    for stage in range(len(plan.replicas[number].stages)):
        exposed = float(times.tails[stage]) + float(times.gathers[stage])
        spans: list[tuple[Kind, float, float]] = [
            ("optimizer", longest, found.norm_seconds + float(times.optimizer[stage]))
        ]
        if exposed > 0.0:
            spans.insert(0, ("synchronise", times.pipeline_seconds, exposed))
        for kind, start, seconds in spans:
            yield Event(replica=number, stage=stage, kind=kind, start_seconds=start, end_seconds=start + seconds)
