"""Events of the Chrome trace format.

The format: "Trace Event Format" (Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
Complete events ("X") have start and length in microseconds, metadata ("M") names processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Literal

FORMAT = "Chrome trace event format"
MICROSECONDS = 1e6
DIGITS = 3  # of a microsecond
NANOSECOND = 1e-3


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
        "traceEvents": [dict(each) for each in events],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n", document
