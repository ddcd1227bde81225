"""A measured step in the Chrome trace format, to stand in one file with the predicted one: a process for each copy of a
replica with a thread for each rank, and one for each rank whose operators were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from shardwright.exporters.perfetto.format import MICROSECONDS, complete, named, ordered

Lane = Literal["schedule", "host", "device"]
WORK: Lane = "schedule"
HOST: Lane = "host"
DEVICE: Lane = "device"
FIRST_PROCESS, FIRST_RANK = 1_000, 100_000  # numbers of processes: of copies, and of ranks with operators


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    begin = min(each.wall_seconds for each in ranks)
    numbers = {process: FIRST_PROCESS + at for at, process in enumerate(sorted({each.process for each in ranks}))}
    for (replica, copy), number in numbers.items():
        yield named("process", number, f"measured: replica {replica + 1}, copy {copy + 1}")
        yield ordered("process", number, number)
    for each in ranks:
        number, own = numbers[each.process], FIRST_RANK + each.rank
        yield named("thread", number, f"rank {each.rank}: {each.name}", thread=each.rank)
        yield ordered("thread", number, each.rank, thread=each.rank)
        if any(span.lane != WORK for span in each.spans):
            yield named("process", own, f"operators of rank {each.rank}")
            yield ordered("process", own, own)
        threads: dict[tuple[str, int, int], int] = {}
        for span, row in nested(each.spans):
            process, thread = number, each.rank
            if span.lane != WORK:
                key = (span.lane, span.thread, row)
                if key not in threads:
                    threads[key] = len(threads)
                    words = f"{span.lane}, {'stream' if span.lane == DEVICE else 'thread'} {span.thread}"
                    yield named("thread", own, words + (", beside" if row else ""), thread=threads[key])
                process, thread = own, threads[key]
            start = (each.wall_seconds - begin + span.begin) * MICROSECONDS
            length = (span.end - span.begin) * MICROSECONDS
            yield complete(process, thread, span.name, span.kind, start, length, span.args)


def nested(spans: Sequence[MeasuredSpan]) -> Iterator[tuple[MeasuredSpan, int]]:
    """Yield spans, in order of their begin, with the row of their thread on which they stand inside others or beside
    them: viewers drop what overlaps otherwise, as communication does that goes on beside what follows."""
    rows: dict[tuple[str, int], list[list[float]]] = {}
    for span in sorted(spans, key=lambda each: (each.begin, -each.end)):
        found = rows.setdefault((span.lane, span.thread), [])
        for ends in found:
            while ends and ends[-1] <= span.begin:
                ends.pop()
        place = next((at for at, ends in enumerate(found) if not ends or span.end <= ends[-1]), len(found))
        if place == len(found):
            found.append([])
        found[place].append(span.end)
        yield span, place
