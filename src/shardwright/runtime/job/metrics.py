"""The metrics of a run as CSV, one row a step, flushed as they come; a resumed run goes on in the same file."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path

from shardwright.errors import bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One step, counted from 1. `mfu` is None where the peak of the devices is not known, `held_out_loss` where it was
    not taken then."""

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    seconds: float
    tokens_per_second: float
    mfu: float | None
    pass_seconds: float
    sync_seconds: float
    update_seconds: float
    peak_memory_bytes: int
    held_out_loss: float | None = None


FILE = "metrics.csv"
COLUMNS = tuple(field.name for field in fields(Row))


def begin(path: Path, first_step: int) -> None:
    """Prepare the file for rows from step `first_step` on: later ones, of a run that was given up, are dropped. Raises
    SpecError where it cannot be written."""
    kept: list[list[str]] = []
    if first_step > 1 and path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        kept = [row for row in rows[1:] if row and row[0].isdigit() and int(row[0]) < first_step]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *kept])
    except OSError as error:
        raise bad(str(path), f"cannot be written: {error.strerror}", "check the folder") from None


def append(path: Path, row: Row) -> None:
    """Add a row."""
    values = [getattr(row, name) for name in COLUMNS]
    with path.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(["" if value is None else value for value in values])
