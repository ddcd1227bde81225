"""Traces of PyTorch's profiler (Kineto) and those that `train` writes, as what each rank did.

Kineto writes a file a rank: kernels and copies on the streams of a device, the launches (`cuda_runtime`, joined to
kernels by `correlation`), operators of the host and annotations; `ProfilerStep#N` marks steps. A trace of `train` has a
thread for each rank whose spans say what its schedule did, and a process of operators for each rank.

Both are Chrome traces ("Trace Event Format", Google), whose events are read as they stream: an event is decoded by the
standard library's JSON decoder at the place where it begins, so that memory is that of a block and of what the reader
keeps. Plain and gzipped files, traces that are an object and those that are a bare array.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from shardwright.arrays import Array, Bools, Floats
from shardwright.cost.pipeline.schedule import WORDS
from shardwright.errors import SpecError, bad
from shardwright.progress import tell
from shardwright.traces.figures import COMPUTE, NOTHING, Activity, Spans, kind_of, union

MICROSECOND = 1e-6
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
ANNOTATIONS = {"user_annotation", "gpu_user_annotation"}
STEP = re.compile(r"ProfilerStep#(\d+)")
UPDATE = re.compile(r"Optimizer\.step#|optimizer[-_ ]?step", re.IGNORECASE)
DATA = re.compile(r"enumerate\(DataLoader\)|dataloader|data_iterator|get_batch|batch[-_]generator", re.IGNORECASE)
ALLOCATE = re.compile(r"(cuda|hip)(Malloc|Free)(Async|Host)?$|cuMem(Create|Map|Unmap|Release)")
RANK_OF_NAME = re.compile(r"rank[-_ .]?(\d+)", re.IGNORECASE)
# What the spans of a trace of `train` are (`runtime.timing.layer_profile`).
OWN = {
    **dict.fromkeys(WORDS, COMPUTE),
    "optimizer": "optimizer",
    "wait": "send_recv",
    "synchronise": "all_reduce",
}
OWN_GROUPS = {"wait": "pipeline", "synchronise": "gradients"}
BLOCK = 1 << 22  # characters read at a time
LONGEST_EVENT = 1 << 26  # characters of one event, or of what stands before the first
GZIP = b"\x1f\x8b"
EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
BETWEEN = re.compile(r"[\s,]*")


class _Recorded:
    """What the events of a rank say, while they stream."""

    def __init__(self) -> None:
        self.begin, self.end, self.correlation = array("d"), array("d"), array("q")
        self.kind, self.group = array("l"), array("l")
        self.kinds: dict[str, int] = {}
        self.groups: dict[tuple[str, int], int] = {("", 0): 0}
        self.launched, self.launches = array("d"), array("q")
        self.steps: dict[str, tuple[float, float]] = {}
        self.device_steps: dict[str, tuple[float, float]] = {}
        self.host: dict[str, tuple[array[float], array[float]]] = {}
        self.allocations = 0
        self.passes: dict[tuple[str, int], list[float]] = {}

    def work(self, name: str, begin: float, end: float, args: Mapping[str, Any]) -> None:
        """Add a kernel, a copy, or an operator of the host."""
        self.add(kind_of(name), begin, end, _group_of(args), int(args.get("correlation") or -1))

    def add(self, kind: str, begin: float, end: float, group: tuple[str, int] = ("", 0), correlation: int = -1) -> None:
        self.begin.append(begin)
        self.end.append(end)
        self.kind.append(self.kinds.setdefault(kind, len(self.kinds)))
        self.group.append(self.groups.setdefault(group, len(self.groups)))
        self.correlation.append(correlation)

    def note(self, what: str, begin: float, end: float) -> None:
        """Add a time of the host."""
        begins, ends = self.host.setdefault(what, (array("d"), array("d")))
        begins.append(begin)
        ends.append(end)

    def spans(self) -> Spans:
        begin, end = np.array(self.begin), np.array(self.end)
        return Spans(
            begin=begin,
            end=end,
            kind=np.array(self.kind, dtype=np.int64),
            group=np.array(self.group, dtype=np.int64),
            update=self._launched_by_update() | (np.array(self.kind, dtype=int) == self.kinds.get("optimizer", -1)),
            kinds=tuple(self.kinds),
            groups=tuple(self.groups),
        )

    def _launched_by_update(self) -> Bools:
        """Return which work the update launched; without a device, which ran in it."""
        windows = self.times("update")
        if not len(windows) or not len(self.begin):
            return np.zeros(len(self.begin), dtype=bool)

        def inside(moments: Array) -> Bools:
            place = np.searchsorted(windows[:, 0], moments, side="right") - 1
            return np.asarray((place >= 0) & (moments < windows[np.maximum(place, 0), 1]))

        if not len(self.launched):
            return inside(np.array(self.begin))
        numbers = np.array(self.launches, dtype=np.int64)[inside(np.array(self.launched))]
        return np.isin(np.array(self.correlation, dtype=np.int64), numbers)

    def times(self, what: str) -> Floats:
        return union(*map(np.array, self.host[what])) if what in self.host else NOTHING


def activities(path: Path, place: int = 0) -> tuple[Activity, ...]:
    """Return what each rank of a file did; `place` is its number among several files, which is the rank where neither
    the trace nor the name of its file says it. Raises SpecError for a file that is none, or has no work in it."""
    trace = ChromeTrace(path)
    processes: dict[Any, str] = {}
    ranks: dict[Any, _Recorded] = {}  # of `train`
    devices: dict[int, _Recorded] = {}
    host = _Recorded()
    for event in trace.events():
        phase, process = event.get("ph"), event.get("pid")
        if phase == "M":
            if event.get("name") == "process_name":
                processes[process] = str((event.get("args") or {}).get("name", ""))
            continue
        if phase != "X" or not isinstance(event.get("ts"), int | float | str):
            continue
        begin, length = _seconds(event.get("ts")), _seconds(event.get("dur", 0))
        whose = processes.get(process, "")
        if whose.startswith("measured:"):
            _own_event(ranks.setdefault(event.get("tid"), _Recorded()), event, begin, begin + length)
        elif not whose.startswith(("predicted:", "operators of rank")):
            _kineto_event(devices, host, event, begin, begin + length)
    if ranks:
        return tuple(_own_activity(int(rank), recorded, str(path)) for rank, recorded in sorted(ranks.items()))
    return _of_kineto(path, place, trace.about, devices, host)


def _kineto_event(
    devices: dict[int, _Recorded], host: _Recorded, event: Mapping[str, Any], begin: float, end: float
) -> None:
    kind, name, args = str(event.get("cat", "")).casefold(), str(event.get("name", "")), event.get("args") or {}
    if kind in DEVICE:
        device = args.get("device", 0)
        recorded = devices.setdefault(device if isinstance(device, int) else 0, _Recorded())
        recorded.work("memcpy" if kind != "kernel" else name, begin, end, args)
    elif kind in ANNOTATIONS or STEP.match(name):
        _annotation(host, kind, name, begin, end)
    elif kind in ("cuda_runtime", "cuda_driver", "runtime"):
        if (number := args.get("correlation")) is not None:
            host.launched.append(begin)
            host.launches.append(int(number))
        if ALLOCATE.match(name):
            host.allocations += 1
            host.note("allocate", begin, end)
    elif kind in ("cpu_op", "operator"):
        host.work(name, begin, end, args)
        if DATA.search(name):
            host.note("data", begin, end)


def _annotation(host: _Recorded, kind: str, name: str, begin: float, end: float) -> None:
    if STEP.match(name):
        (host.device_steps if kind.startswith("gpu") else host.steps)[name] = (begin, end)
    elif kind.startswith("gpu"):
        return
    elif UPDATE.search(name):
        host.note("update", begin, end)
    elif DATA.search(name):
        host.note("data", begin, end)


def _own_event(recorded: _Recorded, event: Mapping[str, Any], begin: float, end: float) -> None:
    kind = str(event.get("cat"))
    if kind == "data":
        recorded.note("data", begin, end)
        return
    if kind not in OWN:
        return
    recorded.add(OWN[kind], begin, end, (OWN_GROUPS.get(kind, ""), 0))
    if kind in ("forward", "backward"):
        stage = int((event.get("args") or {}).get("virtual_stage", 0))
        recorded.passes.setdefault((kind, stage), []).append(end - begin)


def _own_activity(rank: int, recorded: _Recorded, source: str) -> Activity:
    spans = recorded.spans()
    return Activity(
        rank=rank,
        source=source,
        begin=0.0,
        end=float(spans.end.max()),
        steps=1,
        counted=True,
        device=spans,
        host={"data": recorded.times("data")},
        passes={key: tuple(values) for key, values in recorded.passes.items()},
        on_gpu=False,
    )


def _of_kineto(
    path: Path, place: int, about: Mapping[str, Any], devices: Mapping[int, _Recorded], host: _Recorded
) -> tuple[Activity, ...]:
    on_gpu = bool(devices)
    if not on_gpu and not len(host.begin):
        message = "has no kernel and no operator"
        raise bad(str(path), message, "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]")
    chosen = dict(devices) if on_gpu else {0: host}
    ranks = _ranks(path, place, about, len(chosen))
    marked, counted = _steps(host)
    rows = []
    for rank, (_, recorded) in zip(ranks, sorted(chosen.items()), strict=True):
        recorded.launched, recorded.launches = host.launched, host.launches
        recorded.host = host.host
        spans = recorded.spans()
        begin, end, steps = _window(spans.begin, spans.end, marked)
        rows.append(
            Activity(
                rank=rank, source=str(path), begin=begin, end=end, steps=steps, counted=counted, device=spans,
                host={name: recorded.times(name) for name in ("data", "allocate")},
                allocations=host.allocations, on_gpu=on_gpu,
            )
        )  # fmt: skip
    return tuple(rows)


def _steps(host: _Recorded) -> tuple[Sequence[tuple[float, float]], bool]:
    """Return the times of steps: as the device has them, else the host, else from one update to the next; and whether
    any of these are marked."""
    steps = host.device_steps if len(host.device_steps) >= max(len(host.steps), 1) else host.steps
    if steps:
        return list(steps.values()), True
    ends = host.times("update")[:, 1].tolist()
    return list(pairwise(ends)), len(ends) > 1


def _window(begin: Array, end: Array, steps: Sequence[tuple[float, float]]) -> tuple[float, float, int]:
    """Return from when to when steps ran, and how many: all that is there as one, where none is marked."""
    times = [step for step in steps if step[1] > begin.min() and step[0] < end.max()]
    if not times:
        return float(begin.min()), float(end.max()), 1
    return min(step[0] for step in times), max(step[1] for step in times), len(times)


def _ranks(path: Path, place: int, about: Mapping[str, Any], count: int) -> list[int]:
    info = about.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, Mapping) else None
    if not isinstance(rank, int):
        match = RANK_OF_NAME.search(path.name)
        rank = int(match[1]) if match else place
    return [rank + number for number in range(count)]


def _group_of(args: Mapping[str, Any]) -> tuple[str, int]:
    ranks = args.get("Group size")
    name = args.get("Process Group Description") or args.get("Process Group Name") or ""
    return str(name), ranks if isinstance(ranks, int) else 0


def _seconds(value: Any) -> float:
    try:
        return float(value) * MICROSECOND
    except (TypeError, ValueError):
        return 0.0


class ChromeTrace:
    """A trace file: `events` yields each event once; `about` has what stands around them, whole once all are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, Any] = {}

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in the order of the file, and tell progress. Raises SpecError for a file that is no trace,
        is cut off or damaged, with the place."""
        try:
            with self.path.open("rb") as raw:
                zipped = raw.read(2) == GZIP
                raw.seek(0)
                stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if zipped else raw)
                yield from self._streamed(stream, raw, max(self.path.stat().st_size, 1))
        except (OSError, EOFError, zlib.error) as error:
            raise bad(str(self.path), f"cannot be read: {error}", "check the file; it may be cut off") from None

    def _streamed(self, stream: IO[bytes], raw: IO[bytes], size: int) -> Iterator[dict[str, Any]]:
        blocks = _texts(stream, str(self.path))
        text = next(blocks, "").lstrip("\ufeff \t\r\n")
        place, passed = self._beginning(text), 0
        while place is None:
            more = next(blocks, "")
            if not more or len(text) > LONGEST_EVENT:
                raise bad(str(self.path), "has no traceEvents", "give a trace of PyTorch's profiler, or of `train`")
            text += more
            place = self._beginning(text)
        decode, number = json.JSONDecoder().raw_decode, 0
        while True:
            place = BETWEEN.match(text, place).end()  # type: ignore[union-attr]
            try:
                if place < len(text) and text[place] == "]":
                    break
                event, place = decode(text, place)
            except json.JSONDecodeError as error:
                more = next(blocks, "")
                if not more or len(text) - place > LONGEST_EVENT:
                    raise self._damaged(number, passed + error.pos, more) from None
                passed += place
                text, place = text[place:] + more, 0
                tell(raw.tell() / size)
                continue
            number += 1
            if not isinstance(event, dict):
                raise bad(str(self.path), f"event {number} is no object", "give a trace of PyTorch's profiler")
            yield event
        self._rest(text[place + 1 :] + "".join(blocks))

    def _beginning(self, text: str) -> int | None:
        """Return where the first event begins, and keep what stands before; None where it is not there yet."""
        if text.startswith("["):
            return 1
        match = EVENTS.search(text)
        if match is None:
            return None
        self._note(text[: match.start()].rstrip().rstrip(",") + "}")
        return match.end()

    def _rest(self, text: str) -> None:
        text = text.strip().lstrip(",").strip()
        if text not in ("", "}"):
            self._note("{" + text)

    def _note(self, text: str) -> None:
        """Keep keys beside the events, where they can be read: nothing hangs on them alone."""
        try:
            value = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            return
        if isinstance(value, dict):
            self.about |= value

    def _damaged(self, number: int, place: int, more: str) -> SpecError:
        what = "is not valid JSON" if more else "ends"
        hint = "record it anew" if more else "the file seems to be cut off: record it anew"
        return bad(str(self.path), f"{what} in event {number + 1}, character {place:,}", hint)


def _texts(stream: IO[bytes], name: str) -> Iterator[str]:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while block := stream.read(BLOCK):
        if b"\0" in block[:1024]:
            raise bad(name, "is a binary file, not a Chrome trace", "give the trace as JSON")
        yield decoder.decode(block)
    yield decoder.decode(b"", final=True)
