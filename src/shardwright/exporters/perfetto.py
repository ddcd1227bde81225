"""A plan's iteration as a trace, which https://ui.perfetto.dev and chrome://tracing open: the predicted one, a process
for each kind of replica and a thread for each stage, and beside it a measured one, a process for each copy of a replica
with a thread for each rank, and one for each rank whose operators were recorded.

The format: "Trace Event Format" (Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
Complete events ("X") have start and length in microseconds, metadata ("M") names processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Literal

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.iteration.timeline import TimelineEvent, events
from shardwright.cost.learned import default_efficiency
from shardwright.errors import SpecError, reject
from shardwright.exporters.exported import Exported
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.records import record

PASS = ("micro_batch", "virtual_stage", "unit", "wave")  # the first that an event has is in its name
NAMES = {"communicate": "communication inside the pass", "synchronise": "gradients and weights between replicas"}

Lane = Literal["schedule", "host", "device"]
WORK: Lane = "schedule"
HOST: Lane = "host"
DEVICE: Lane = "device"
FIRST_PROCESS, FIRST_RANK = 1_000, 100_000  # numbers of processes: of copies, and of ranks with operators

FORMAT = "Chrome trace event format"
MICROSECONDS = 1e6
DIGITS = 3  # of a microsecond
NANOSECOND = 1e-3


def export_trace(plan: Plan, efficiency: Efficiency | None = None) -> Exported:
    """Return the trace of one predicted iteration of a plan. Raises SpecError where the plan is not legal."""
    reject(check(plan))
    found = mixed_iteration(plan, efficiency or default_efficiency())
    about = {"model": plan.model.name, "iteration_seconds": found.seconds}
    text, document = trace_text(about, [*_names(plan), *_events(events(plan, found))])
    return Exported(target="perfetto", version=FORMAT, files={"trace.json": text}, document={"trace": document})


def measured_trace(plan: Plan, ranks: Sequence[RankTrace], efficiency: Efficiency | None = None) -> str:
    """Return the trace of a measured step as text, with the predicted one beside it unless a GPU of the plan is one of
    which nothing is known without a profile."""
    try:
        found = mixed_iteration(plan, efficiency or default_efficiency())
    except SpecError:
        predicted: list[dict[str, object]] = []
    else:
        predicted = [*_names(plan), *_events(events(plan, found))]
    return trace_text({"model": plan.model.name}, [*predicted, *measured_events(ranks)])[0]


def _names(plan: Plan) -> Iterator[dict[str, object]]:
    """Yield what processes and threads are called."""
    for number, replica in enumerate(plan.replicas):
        yield named("process", number, f"predicted: replica {number + 1} ({replica.count} ×)")
        for place, stage in enumerate(replica.stages):
            words = f"stage {place}: {stage.gpus} {stage.gpu}, {stage.layer_count} layers"
            yield named("thread", number, words, thread=place)
            yield ordered("thread", number, place, thread=place)


def _events(events: Iterable[TimelineEvent]) -> Iterator[dict[str, object]]:
    for event in events:
        of_pass = {name: getattr(event, name) for name in PASS if getattr(event, name) >= 0}
        name = " ".join([NAMES.get(event.kind, event.kind), *map(str, [*of_pass.values()][:1])])
        start, length = event.start_seconds * MICROSECONDS, (event.end_seconds - event.start_seconds) * MICROSECONDS
        yield complete(event.replica, event.stage, name, event.kind, start, length, of_pass)


@record
class MeasuredSpan:
    """Something that a rank did, in seconds from the beginning of the step there: what its schedule did, or an operator
    on a thread of the host or a stream of the device."""

    name: str
    kind: str
    begin: float
    end: float
    lane: Lane = WORK
    thread: int = 0
    args: Mapping[str, int] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return the span as plain data, to be sent."""
        return asdict(self)


@record
class RankTrace:
    """The spans of a rank in a step that began at `wall_seconds` of its machine's clock; `process` is the copy of a
    replica that it works for, `name` its stage."""

    rank: int
    process: tuple[int, int]
    name: str
    wall_seconds: float
    spans: Sequence[MeasuredSpan]


def measured_events(ranks: Sequence[RankTrace]) -> Iterator[dict[str, object]]:
    """Yield the events of all ranks of a step; the first of them begins at 0."""
    begin = min(rank.wall_seconds for rank in ranks)
    numbers = {process: FIRST_PROCESS + at for at, process in enumerate(sorted({rank.process for rank in ranks}))}
    for (replica, copy), number in numbers.items():
        yield named("process", number, f"measured: replica {replica + 1}, copy {copy + 1}")
        yield ordered("process", number, number)
    for rank in ranks:
        number, process_of_rank = numbers[rank.process], FIRST_RANK + rank.rank
        yield named("thread", number, f"rank {rank.rank}: {rank.name}", thread=rank.rank)
        yield ordered("thread", number, rank.rank, thread=rank.rank)
        if any(span.lane != WORK for span in rank.spans):
            yield named("process", process_of_rank, f"operators of rank {rank.rank}")
            yield ordered("process", process_of_rank, process_of_rank)
        threads: dict[tuple[str, int, int], int] = {}
        for span, row in nested(rank.spans):
            process, thread = number, rank.rank
            if span.lane != WORK:
                key = (span.lane, span.thread, row)
                if key not in threads:
                    threads[key] = len(threads)
                    words = f"{span.lane}, {'stream' if span.lane == DEVICE else 'thread'} {span.thread}"
                    yield named("thread", process_of_rank, words + (", beside" if row else ""), thread=threads[key])
                process, thread = process_of_rank, threads[key]
            start = (rank.wall_seconds - begin + span.begin) * MICROSECONDS
            length = (span.end - span.begin) * MICROSECONDS
            yield complete(process, thread, span.name, span.kind, start, length, span.args)


def nested(spans: Sequence[MeasuredSpan]) -> Iterator[tuple[MeasuredSpan, int]]:
    """Yield spans, in order of their begin, with the row of their thread on which they stand inside others or beside
    them: viewers drop what overlaps otherwise, as communication does that goes on beside what follows."""
    rows: dict[tuple[str, int], list[list[float]]] = {}
    for span in sorted(spans, key=lambda span: (span.begin, -span.end)):
        found = rows.setdefault((span.lane, span.thread), [])
        for ends in found:
            while ends and ends[-1] <= span.begin:
                ends.pop()
        place = next((at for at, ends in enumerate(found) if not ends or span.end <= ends[-1]), len(found))
        if place == len(found):
            found.append([])
        found[place].append(span.end)
        yield span, place


def complete(
    process: int, thread: int, name: str, kind: str, start: float, length: float, args: Mapping[str, object]
) -> dict[str, object]:
    """Return an event from `start`, `length` microseconds long, but for the last nanosecond: viewers drop events that
    overlap by a rounding."""
    start, end = round(start, DIGITS), round(start + length, DIGITS)
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "name": name,
        "cat": kind,
        "ts": start,
        "dur": max(round(end - start - NANOSECOND, DIGITS), 0.0),
        "args": dict(args),
    }


def named(what: Literal["process", "thread"], process: int, words: str, *, thread: int = 0) -> dict[str, object]:
    """Return what a process, or a thread of it, is called."""
    return _metadata(what, process, thread, "name", {"name": words})


def ordered(what: Literal["process", "thread"], process: int, place: int, *, thread: int = 0) -> dict[str, object]:
    """Return where a process, or a thread of it, stands."""
    return _metadata(what, process, thread, "sort_index", {"sort_index": place})


def _metadata(what: str, process: int, thread: int, kind: str, args: dict[str, object]) -> dict[str, object]:
    where = {"pid": process} | ({"tid": thread} if what == "thread" else {})
    return {"ph": "M", **where, "name": f"{what}_{kind}", "args": args}


def trace_text(about: Mapping[str, object], events: Iterable[Mapping[str, object]]) -> tuple[str, dict[str, object]]:
    """Return a trace as text and as data; `about` says what it is of."""
    document: dict[str, object] = {
        "displayTimeUnit": "ms",
        "otherData": dict(about),
        "traceEvents": [dict(event) for event in events],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n", document
