"""One iteration of a plan as events in time: passes of every stage, then synchronisation and update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Literal

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.iteration.lanes import of_stages
from shardwright.cost.iteration.mixed import Mixed, pipeline_timeline
from shardwright.cost.iteration.replica_time import UnitPasses
from shardwright.cost.pipeline.schedule import BACKWARD, FORWARD
from shardwright.cost.stage.exact import of_pipelines, per_rank
from shardwright.plans.plan import Plan
from shardwright.records import record

Kind = Literal["forward", "recompute", "backward", "communicate", "synchronise", "optimizer"]


@record
class TimelineEvent:
    """Something that stage `stage` of replicas `replica` does, in seconds from the start of the iteration. A pass has a
    micro-batch and a virtual stage, under uneven FSDP a wave and a unit; other events have -1."""

    replica: int
    stage: int
    kind: Kind
    start_seconds: float
    end_seconds: float
    micro_batch: int = -1
    virtual_stage: int = -1
    wave: int = -1
    unit: int = -1


def events(plan: Plan, iteration: Mixed) -> Iterator[TimelineEvent]:
    """Yield the events of an iteration of a legal plan, replica by replica; equal copies are one replica."""
    for number in range(len(plan.replicas)):
        yield from pass_events(plan, iteration, number)
        yield from closing_events(plan, iteration, number)


def pass_events(plan: Plan, iteration: Mixed, number: int) -> Iterator[TimelineEvent]:
    """Yield the passes of a replica. A backward pass that computes again what was not kept begins with that; what a
    pass does not compute (collectives inside a layer that nothing hides, and launching) stands at its end, though it is
    spread over its layers."""
    replica, times = plan.replicas[number], iteration.replicas[number]
    if times.units is not None:
        yield from _unit_events(times.units, number)
        return
    when = pipeline_timeline(plan, replica, times)
    chunk = when.virtual_stage // len(replica.stages)
    again = times.stages.recompute[0][chunk, when.rank]
    forward, backward = (seconds[when.rank, chunk] for seconds in _communication(plan, iteration, number))
    rest = np.where(when.kind == FORWARD, forward, np.where(when.kind == BACKWARD, backward, 0.0))
    columns = (when.rank, when.kind, when.start_seconds, when.end_seconds, again, rest, when.micro_batch, chunk)
    for rank, kind, start, end, repeated, apart, micro, virtual in zip(*(c.tolist() for c in columns), strict=True):
        middle = start + repeated if kind == BACKWARD else start
        parts: list[tuple[Kind, float, float]] = [
            ("recompute", start, middle),
            ("forward" if kind == FORWARD else "backward", middle, end - apart),
            ("communicate", end - apart, end),
        ]
        for name, begin, stop in parts:
            if stop <= begin and name not in ("forward", "backward"):
                continue
            yield TimelineEvent(
                replica=number,
                stage=rank,
                kind=name,
                start_seconds=begin,
                end_seconds=stop,
                micro_batch=micro,
                virtual_stage=virtual,
            )


def _unit_events(passes: UnitPasses, number: int) -> Iterator[TimelineEvent]:
    columns = (getattr(passes, field.name).tolist() for field in fields(passes))
    for unit, wave, backward, start, end, again in zip(*columns, strict=True):
        parts: list[tuple[Kind, float, float]] = [("backward" if backward else "forward", start + again, end)]
        if again:
            parts.insert(0, ("recompute", start, start + again))
        for name, begin, stop in parts:
            yield TimelineEvent(
                replica=number, stage=0, kind=name, start_seconds=begin, end_seconds=stop, wave=wave, unit=unit
            )


def _communication(plan: Plan, iteration: Mixed, number: int) -> tuple[Floats, Floats]:
    """Return what forward and backward passes of a replica's stages do beside computing, [P, v] each."""
    times, stages = iteration.replicas[number].stages, len(plan.replicas[number].stages)
    if not iteration.lanes:
        nothing = np.zeros((stages, plan.schedule.virtual_stages))
        return nothing, nothing
    first = sum(len(replica.stages) for replica in plan.replicas[:number])

    def computing(column: str) -> Floats:
        values = []
        for lane in iteration.lanes:
            ranges = of_pipelines(lane.shards.row, lane.starts, lane.context.layer_count)
            values.append(per_rank(ranges.total(getattr(lane.shards.table, column)), int(lane.rows.vpp[0])))
        return of_stages(iteration.lanes, values)[first : first + stages]

    forward = times.forward[0].T - computing("compute_forward")
    backward = (times.backward + times.weights)[0].T - times.recompute[0].T - computing("compute_backward")
    return np.maximum(forward, 0.0), np.maximum(backward, 0.0)


def closing_events(plan: Plan, iteration: Mixed, number: int) -> Iterator[TimelineEvent]:
    """Yield what follows the pipeline of a replica: communication between replicas that it does not hide, and
    then the gradient norm and the update, which begin when the slowest replica is done."""
    times, longest = iteration.replicas[number], max(replica.busy_seconds for replica in iteration.replicas)
    for stage in range(len(plan.replicas[number].stages)):
        exposed = float(times.tails[stage]) + float(times.gathers[stage])
        spans: list[tuple[Kind, float, float]] = [
            ("optimizer", longest, iteration.norm_seconds + float(times.optimizer[stage]))
        ]
        if exposed > 0.0:
            spans.insert(0, ("synchronise", times.pipeline_seconds, exposed))
        for kind, start, seconds in spans:
            yield TimelineEvent(
                replica=number, stage=stage, kind=kind, start_seconds=start, end_seconds=start + seconds
            )
