"""Exports of Nsight Systems (`nsys export --type sqlite`) as what each device did.

Tables of the export (docs.nvidia.com/nsight-systems, "Exporting to SQLite"): CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY and
_MEMSET with times in nanoseconds and the device, CUPTI_ACTIVITY_KIND_RUNTIME with the calls of the host, NVTX_EVENTS
with ranges, names in StringIds. A range that repeats and holds all others, such as `step 12`, marks steps.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from shardwright.arrays import Floats
from shardwright.errors import bad
from shardwright.progress import tell
from shardwright.traces.figures import COPY, Activity, Spans, kind_of
from shardwright.traces.kineto import ALLOCATE, DATA, RANK_OF_NAME, UPDATE

NANOSECOND = 1e-9
MAGIC = b"SQLite format 3\0"
STEP = re.compile(r"^(iteration|step|train_step|ProfilerStep#?)[ _:#]*\d*$", re.IGNORECASE)
KERNELS, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
EXPORT = "export it with `nsys export` and the type sqlite"


def activities(path: Path, place: int = 0) -> tuple[Activity, ...]:
    """Return what each device of an export did; `place` is its number among several files. Raises SpecError for a file
    that is no such export, or has no kernel."""
    try:
        with closing(sqlite3.connect(f"file:{path.resolve()}?mode=ro", uri=True)) as database:
            return tuple(_activities(database, path, place))
    except sqlite3.Error as error:
        raise bad(str(path), f"cannot be read as an export of Nsight Systems: {error}", EXPORT) from None


def _activities(database: sqlite3.Connection, path: Path, place: int) -> Iterator[Activity]:
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    if KERNELS not in tables:
        raise bad(
            str(path), "has no kernels (CUPTI_ACTIVITY_KIND_KERNEL)", "record with `nsys profile` and trace=cuda,nvtx"
        )
    names = dict(database.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
    host = {"data": _ranges(database, tables, names, DATA), "allocate": _calls(database, tables, names, ALLOCATE)}
    updates, steps = _ranges(database, tables, names, UPDATE), _ranges(database, tables, names, STEP)
    match = RANK_OF_NAME.search(path.name)
    first = int(match[1]) if match else place
    devices = [row[0] for row in database.execute(f"SELECT DISTINCT deviceId FROM {KERNELS} ORDER BY deviceId")]
    for number, device in enumerate(devices):
        tell(number / len(devices))
        spans = _device(database, tables, names, device, updates)
        inside = steps[(steps[:, 1] > spans.begin.min()) & (steps[:, 0] < spans.end.max())]
        counted = len(inside) > 0
        yield Activity(
            rank=first + number,
            source=str(path),
            begin=float(inside[:, 0].min() if counted else spans.begin.min()),
            end=float(inside[:, 1].max() if counted else spans.end.max()),
            steps=max(len(inside), 1),
            counted=counted,
            device=spans,
            host=host,
            allocations=len(host["allocate"]),
        )


def _device(
    database: sqlite3.Connection, tables: set[str], names: dict[int, str], device: int, updates: Floats
) -> Spans:
    kinds: dict[str, int] = {}
    rows: list[tuple[float, float, int]] = []
    query = f"SELECT start, end, demangledName FROM {KERNELS} WHERE deviceId = ?"
    for start, end, name in database.execute(query, (device,)):
        kind = kind_of(str(names.get(name, name)))
        rows.append((start * NANOSECOND, end * NANOSECOND, kinds.setdefault(kind, len(kinds))))
    for table in COPIES:
        if table in tables:
            for start, end in database.execute(f"SELECT start, end FROM {table} WHERE deviceId = ?", (device,)):
                rows.append((start * NANOSECOND, end * NANOSECOND, kinds.setdefault(COPY, len(kinds))))
    table_of_rows = np.array(rows)
    begin, end, codes = table_of_rows[:, 0], table_of_rows[:, 1], table_of_rows[:, 2].astype(np.int64)
    place = np.searchsorted(updates[:, 0], begin, side="right") - 1
    in_update = np.zeros(len(begin), dtype=bool)
    if len(updates):
        in_update = (place >= 0) & (begin < updates[np.maximum(place, 0), 1])
    return Spans(
        begin=begin,
        end=end,
        kind=codes,
        group=np.zeros(len(begin), dtype=np.int64),
        update=in_update | (codes == kinds.get("optimizer", -1)),
        kinds=tuple(kinds),
        groups=(("", 0),),
    )


def _ranges(database: sqlite3.Connection, tables: set[str], names: dict[int, str], pattern: re.Pattern[str]) -> Floats:
    """Return the times of NVTX ranges whose text matches."""
    if "NVTX_EVENTS" not in tables:
        return np.zeros((0, 2))
    columns = {row[1] for row in database.execute("PRAGMA table_info(NVTX_EVENTS)")}
    text = ", ".join(column if column in columns else "NULL" for column in ("text", "textId"))
    spans = [
        (start * NANOSECOND, end * NANOSECOND)
        for start, end, words, number in database.execute(f"SELECT start, end, {text} FROM NVTX_EVENTS")
        if end is not None and pattern.search(str(words or names.get(number, "")))
    ]
    return np.array(sorted(spans)).reshape(-1, 2)


def _calls(database: sqlite3.Connection, tables: set[str], names: dict[int, str], pattern: re.Pattern[str]) -> Floats:
    """Return the times of calls of the CUDA runtime whose names match."""
    if RUNTIME not in tables:
        return np.zeros((0, 2))
    wanted = [number for number, name in names.items() if pattern.search(str(name).partition("_v")[0])]
    marks = ",".join("?" * len(wanted))
    query = f"SELECT start, end FROM {RUNTIME} WHERE nameId IN ({marks}) ORDER BY start"
    return np.array([(a * NANOSECOND, b * NANOSECOND) for a, b in database.execute(query, wanted)]).reshape(-1, 2)
