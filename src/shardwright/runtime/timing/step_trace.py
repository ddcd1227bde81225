"""One step of a rank as spans in time: what its schedule did, and the operators that PyTorch's profiler saw in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from shardwright.cost.pipeline.schedule import WORDS
from shardwright.exporters.perfetto import DEVICE, HOST, MeasuredSpan, RankTrace, measured_trace
from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.step.engine import StepResult
from shardwright.runtime.step.pipeline import Event, Moment, moment, seconds_between

MOST_OPERATORS = 20_000  # of a rank: the longest
ANCHOR = "shardwright: step"
SECONDS_PER_MICROSECOND = 1e-6


@dataclass(slots=True, kw_only=True)
class StepTrace:
    """When a step began, by the machine's clock and as a moment of the device, and the operators inside it."""

    wall_seconds: float
    began: Moment
    operators: list[MeasuredSpan] = field(default_factory=list)


@contextmanager
def traced(device: torch.device) -> Iterator[StepTrace]:
    """Watch a step: operators are there when it is over, on a GPU its kernels too."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    with profile(activities=activities, acc_events=True) as profiler:
        trace = StepTrace(wall_seconds=time.time(), began=moment(device))
        with record_function(ANCHOR):
            yield trace
            if device.type == "cuda":
                torch.cuda.synchronize(device)
    trace.operators += _operators(profiler.events() or [])


def spans(trace: StepTrace, events: Sequence[Event], result: StepResult, data_seconds: float) -> list[MeasuredSpan]:
    """Return the passes of a traced step that is over, the waiting for samples before them and for messages between
    them, and what follows them."""
    spans = [MeasuredSpan(name="wait for samples", kind="data", begin=0.0, end=data_seconds)]
    for event in events:
        _, virtual_stage, micro_batch = event.operation
        name = WORDS[event.operation.kind]
        asked, began, ended = (
            seconds_between(trace.began, moment) for moment in (event.asked, event.began, event.ended)
        )
        if began > asked:
            spans.append(MeasuredSpan(name="wait for a message", kind="wait", begin=asked, end=began))
        spans.append(
            MeasuredSpan(
                name=f"{name} {micro_batch}",
                kind=name,
                begin=began,
                end=ended,
                args={"micro_batch": micro_batch, "virtual_stage": virtual_stage},
            )
        )
    begin = max([result.pass_seconds, *(span.end for span in spans)])
    for name, kind, seconds in (
        ("wait for gradient sums", "synchronise", result.sync_seconds),
        ("optimizer and updated weights", "optimizer", result.update_seconds),
    ):
        spans.append(MeasuredSpan(name=name, kind=kind, begin=begin, end=begin + seconds))
        begin += seconds
    return spans + trace.operators


def _operators(events: Sequence[Any]) -> list[MeasuredSpan]:
    """Return the longest operators and kernels inside the anchor, in seconds from its beginning."""
    anchors = [event for event in events if event.name == ANCHOR]
    if not anchors:
        return []
    origin, cpu = anchors[0].time_range.start, anchors[0].device_type
    longest = sorted(
        (event for event in events if event.name != ANCHOR and event.time_range.start >= origin),
        key=lambda event: event.time_range.start - event.time_range.end,
    )[:MOST_OPERATORS]
    return [
        MeasuredSpan(
            name=event.name,
            kind="operator",
            begin=(event.time_range.start - origin) * SECONDS_PER_MICROSECOND,
            end=(event.time_range.end - origin) * SECONDS_PER_MICROSECOND,
            lane=DEVICE if event.device_type != cpu else HOST,
            thread=int(event.thread),
        )
        for event in sorted(longest, key=lambda event: event.time_range.start)
    ]


def rank_document(trace: StepTrace, spans: Sequence[MeasuredSpan]) -> dict[str, Any]:
    """Return what rank 0 needs of a rank to join the traces of all."""
    return {"wall_seconds": trace.wall_seconds, "spans": [span.row() for span in spans]}


def trace_of_ranks(layout: Layout, documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the trace of a step from the documents of all ranks, with what the plan predicts beside it."""
    ranks = [
        RankTrace(
            rank=place.rank,
            process=(place.replica, place.copy),
            name=f"stage {place.stage}, {place.gpu}",
            wall_seconds=document["wall_seconds"],
            spans=[MeasuredSpan(**row) for row in document["spans"]],
        )
        for place, document in zip(layout.places, documents, strict=True)
    ]
    return measured_trace(layout.plan, ranks)
