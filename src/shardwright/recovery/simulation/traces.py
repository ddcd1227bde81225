"""`Trace`: how many machines of a type could be had in a zone, and at which price, from when on."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.errors import bad
from shardwright.files import write_atomically
from shardwright.spec.text.reading import read_text
from shardwright.units import SECONDS_PER_HOUR

COLUMNS = ("seconds", "zone", "gpu", "machines", "dollars_per_machine_hour")
LARGEST_BYTES = 64_000_000
Place = tuple[str, str]
"""A zone and a GPU type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """At `seconds` [T], the last of them the end, `machines` [T, P] of each of P places could be had, at `dollars`
    [T, P] a machine and hour."""

    name: str
    places: tuple[Place, ...]
    seconds: Floats
    machines: Ints
    dollars: Floats

    @property
    def hours(self) -> float:
        return float(self.seconds[-1] - self.seconds[0]) / SECONDS_PER_HOUR


def read_trace(path: Path) -> Trace:
    """Return the trace of a CSV file with COLUMNS. A row holds until the next one of its zone and GPU; the last moment
    is the end. Raises SpecError with the line of what is wrong."""
    rows: dict[tuple[float, Place], tuple[int, float]] = {}
    reader = csv.DictReader(io.StringIO(read_text(path, limit_bytes=LARGEST_BYTES), newline=""))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise bad(f"{path}:1", f"has no column {', '.join(missing)}", f"the columns are {','.join(COLUMNS)}")
    for row in reader:
        time, place, found = _row(f"{path}:{reader.line_num}", row)
        rows[time, place] = found
    if len({time for time, _ in rows}) < 2:
        raise bad(str(path), "has fewer than two moments", "the last moment is the end of the trace")
    return trace_of(path.stem, rows)


def trace_of(name: str, rows: Mapping[tuple[float, Place], tuple[int, float]]) -> Trace:
    """Return the trace of what changes when: machines and dollars by time and place."""
    places = tuple(sorted({place for _, place in rows}))
    seconds = np.array(sorted({time for time, _ in rows}))
    machines, dollars = np.zeros((len(seconds), len(places)), np.int64), np.zeros((len(seconds), len(places)))
    column, line = {place: n for n, place in enumerate(places)}, {time: n for n, time in enumerate(seconds.tolist())}
    for (time, place), (number, price) in sorted(rows.items()):
        machines[line[time] :, column[place]] = number
        dollars[line[time] :, column[place]] = price
    return Trace(name=name, places=places, seconds=seconds, machines=machines, dollars=dollars)


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace as `read_trace` reads it."""
    lines = [",".join(COLUMNS)]
    for number, time in enumerate(trace.seconds.tolist()):
        for place, (zone, gpu) in enumerate(trace.places):
            now = (int(trace.machines[number, place]), float(trace.dollars[number, place]))
            before = (int(trace.machines[number - 1, place]), float(trace.dollars[number - 1, place]))
            if number in (0, len(trace.seconds) - 1) or now != before:
                lines.append(f"{time:.0f},{zone},{gpu},{now[0]},{now[1]:g}")
    write_atomically(path, "\n".join(lines) + "\n")


def _row(where: str, row: Mapping[str, str | None]) -> tuple[float, Place, tuple[int, float]]:
    try:
        time, machines, dollars = (
            float(row[name] or "") for name in ("seconds", "machines", "dollars_per_machine_hour")
        )
    except ValueError:
        raise bad(
            where, "seconds, machines and dollars are numbers", "give 0 machines where none could be had"
        ) from None
    if not (0 <= time < inf and 0 <= machines < inf and machines.is_integer() and 0 <= dollars < inf):
        message = "seconds, machines and dollars are finite and not negative, machines whole"
        raise bad(where, message, "mend the line")
    return time, (row["zone"] or "", row["gpu"] or ""), (int(machines), dollars)
