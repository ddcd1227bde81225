"""What a run measured of its units and of one step.

The layer profile that it writes from its own times: what each unit took on each type of GPU and degree, as the moments
at which activations and their gradients appear within a step tell. One step of a rank as spans in time: what its
schedule did, and the operators that PyTorch's profiler saw in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from shardwright.cost.pipeline.schedule import BACKWARD, WORDS
from shardwright.exporters.perfetto import DEVICE, HOST, MeasuredSpan, RankTrace, measured_trace
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rows import grouped
from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.model.parameters import unit_parameters
from shardwright.runtime.step.engine import StepResult
from shardwright.runtime.step.pipeline import Event, Moment, moment, seconds_between
from shardwright.spec.model import Model

NO_PASS = 1 << 30

PROFILE_VERSION = 1


def clock(device: torch.device) -> Callable[[], float]:
    """Return a clock that waits until the device has done what it was given."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


@dataclass(slots=True)
class Stopwatch:
    """Forward and backward seconds of each unit, one entry a micro-batch, from the moments at which activations and
    their gradients appear. Show it the activations (`observe`) and the operations (`record`) of a step."""

    now: Callable[[], float]
    forward: dict[int, list[float]] = field(default_factory=dict)
    backward: dict[int, list[float]] = field(default_factory=dict)
    _last: tuple[int, float] = (NO_PASS, 0.0)
    _stamps: list[tuple[int, float]] = field(default_factory=list)

    def observe(self, unit: int, x: torch.Tensor) -> torch.Tensor:
        """Take the time at which the output of `unit` is there, and will be of its gradient."""
        moment = self.now()
        before, began = self._last
        if unit > before:
            _share(self.forward, before, unit, moment - began)
        self._last = (unit, self.now())
        if x.requires_grad:
            tensor: Any = x
            tensor.register_hook(lambda _: self._stamps.append((unit, self.now())))
        return x

    def record(self, event: Event) -> None:
        """Close an operation: after a backward pass, share its time between the moments seen."""
        self._last = (NO_PASS, 0.0)  # the next observation begins a pass
        if event.operation.kind == BACKWARD and self._stamps:
            stamps = self._stamps
            if event.operation.virtual_stage == 0:  # tokens have no gradient: the pass ends with the embedding's
                stamps = [*stamps, (-1, self.now())]
            for (unit, began), (lower, ended) in pairwise(stamps):
                _share(self.backward, lower, unit, ended - began)
        self._stamps.clear()


def _share(times: dict[int, list[float]], below: int, unit: int, seconds: float) -> None:
    """Give equal parts of a time to the units above `below` up to `unit`."""
    for number in range(below + 1, unit + 1):
        times.setdefault(number, []).append(seconds / (unit - below))


@record
class StageTime:
    """Of one rank in one step: seconds of computing, of waiting for messages, and from first to last operation."""

    busy_seconds: float
    waiting_seconds: float
    span_seconds: float


def stage_time(events: Sequence[Event]) -> StageTime:
    """Return the times of a rank from the events of a step that is over."""
    return StageTime(
        busy_seconds=sum(seconds_between(event.began, event.ended) for event in events),
        waiting_seconds=sum(seconds_between(event.asked, event.began) for event in events),
        span_seconds=seconds_between(events[0].asked, events[-1].ended),
    )


@record
class Measured:
    """Median seconds of the units of one rank, of which `recomputed` ran forward again in the backward pass, and
    seconds of the update for each weight that the rank updates."""

    gpu: str
    tensor_parallel: int
    forward_seconds: Mapping[int, float]
    backward_seconds: Mapping[int, float]
    recomputed: frozenset[int]
    update_seconds_each: float


def medians(times: Mapping[int, Sequence[float]]) -> dict[int, float]:
    return {unit: median(values) for unit, values in sorted(times.items())}


def profile_document(plan: Plan, ranks: Sequence[Measured]) -> dict[str, Any]:
    """Return the profile as JSON data, with an entry for each GPU type and tensor-parallel degree that ran.

    Backward times are without recomputation. Equal layers have one time, the median over them, so it also stands for
    those that a GPU type did not run; embedding and head then take that of another type, scaled as the layers are.
    """
    by_kind = grouped(((rank.gpu, rank.tensor_parallel), rank) for rank in ranks)
    columns = {key: (_column(group, backward=False), _column(group, backward=True)) for key, group in by_kind.items()}
    entries = []
    weights = _weights(plan.model)
    element_bytes = 4 if plan.job.precision == "fp32" else 2
    for (gpu, degree), (forward, backward) in sorted(columns.items()):
        others = [column for key, column in sorted(columns.items()) if key != (gpu, degree)]
        update_seconds = median(rank.update_seconds_each for rank in by_kind[gpu, degree])
        entries.append(
            {
                "gpu": gpu,
                "tensor_parallel": degree,
                "micro_batch": plan.micro_batch,
                "forward_seconds": _completed(plan.model, forward, [other[0] for other in others]),
                "backward_seconds": _completed(plan.model, backward, [other[1] for other in others]),
                "optimizer_seconds": [update_seconds * count / degree for count in weights],
                "weight_bytes": [element_bytes * count / degree for count in weights],
            }
        )
    return {
        "version": PROFILE_VERSION,
        "model": plan.model.name,
        "seq_len": plan.job.seq_len,
        "precision": plan.job.precision,
        "sequence_parallel": plan.sequence_parallel,
        "entries": entries,
    }


def _column(ranks: Sequence[Measured], *, backward: bool) -> dict[int, float]:
    """Return the time of each unit that any of the ranks ran, the median over them."""
    times: dict[int, list[float]] = {}
    for rank in ranks:
        for unit, seconds in (rank.backward_seconds if backward else rank.forward_seconds).items():
            again = rank.forward_seconds.get(unit, 0.0) if backward and unit in rank.recomputed else 0.0
            times.setdefault(unit, []).append(max(seconds - again, 0.0))
    return medians(times)


def _completed(model: Model, times: Mapping[int, float], others: Sequence[Mapping[int, float]]) -> list[float]:
    """Return the seconds of all units in order, those that are missing as the best guess from what is there."""
    layers = len(model.layers)
    by_kind = grouped((model.kind_of_layer[unit - 1], seconds) for unit, seconds in times.items() if 0 < unit <= layers)
    mean = _mean_layer(times, layers)
    full = []
    for unit in range(layers + 2):
        kind = by_kind.get(model.kind_of_layer[unit - 1]) if 0 < unit <= layers else None
        if kind:
            full.append(median(kind))
        elif unit in times:
            full.append(times[unit])
        else:
            guesses = [
                other[unit] * (mean / scale if mean and (scale := _mean_layer(other, layers)) else 1.0)
                for other in others
                if unit in other
            ]
            full.append(median(guesses) if guesses else mean)
    return full


def _weights(model: Model) -> list[int]:
    return [
        sum(prod(parameter.shape) for parameter in unit_parameters(model, unit, model.vocab))
        for unit in range(len(model.layers) + 2)
    ]


def _mean_layer(times: Mapping[int, float], layers: int) -> float:
    of_layers = [seconds for unit, seconds in times.items() if 0 < unit <= layers]
    return sum(of_layers) / len(of_layers) if of_layers else 0.0


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
