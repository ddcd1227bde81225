"""`read_run`: a run from a file of any kind. Columns of a CSV file are read here: our own `metrics.csv`, exports of
trackers, or what someone typed.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from pathlib import Path

from shardwright.errors import bad, suggestion
from shardwright.runs.event_files import read_event_file
from shardwright.runs.logs import read_log
from shardwright.runs.run import NAN, MeasuredRun, Rows, RunSetting, steps_of

TABLES = (".csv",)
METRICS = "metrics.csv"  # in the folder of a run of `shardwright train`
# Names of columns, in lower case and without what stands in parentheses, and what one of their unit is in ours.
COLUMNS: dict[str, tuple[str, float]] = {
    "step": ("step", 1.0),
    "iteration": ("step", 1.0),
    "iter": ("step", 1.0),
    "global_step": ("step", 1.0),
    "seconds": ("seconds", 1.0),
    "step_time": ("seconds", 1.0),
    "step_time_s": ("seconds", 1.0),
    "iteration_time": ("seconds", 1.0),
    "iteration-time": ("seconds", 1.0),
    "iter_time_s": ("seconds", 1.0),
    "train_step_timing in s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
    "milliseconds": ("seconds", 1e-3),
    "step_time_ms": ("seconds", 1e-3),
    "iter_time_ms": ("seconds", 1e-3),
    "tokens_per_second": ("tokens_per_second", 1.0),
    "tokens_per_sec": ("tokens_per_second", 1.0),
    "tokens_per_second_per_gpu": ("gpu_tokens_per_second", 1.0),
    "tokens_per_sec_per_gpu": ("gpu_tokens_per_second", 1.0),
    "samples_per_second": ("samples_per_second", 1.0),
    "tflops_per_gpu": ("gpu_tflops", 1.0),
    "loss": ("loss", 1.0),
    "lm loss": ("loss", 1.0),
    "peak_memory_bytes": ("memory_bytes", 1.0),
    "memory_gib": ("memory_bytes", 2.0**30),
    "memory_gb": ("memory_bytes", 1e9),
    "timestamp": ("clock", 1.0),
    "time_s": ("clock", 1.0),
}
OURS = {"gradient_norm", "pass_seconds", "sync_seconds", "update_seconds"}  # columns of `runtime.job.metrics`
BLANK = {"", "nan", "none", "null", "-"}


def read_run(
    path: Path | str,
    *,
    global_batch: int | None = None,
    seq_len: int | None = None,
    sequences: int = 1,
    gpus: int | None = None,
) -> MeasuredRun:
    """Return the run that a file tells of: the log of a trainer (`.gz` too), an event file of TensorBoard or a folder
    of them, a result log of MLPerf, a CSV file with a row a step (columns as in `COLUMNS` below), or the folder of a
    run of `shardwright train`.

    `global_batch` (samples), `seq_len` (tokens of a sequence), the `sequences` of a sample and `gpus` are those of the
    launch, for files that report rates alone and do not say them. Raises SpecError for a file that is no such thing,
    and names the line of what is malformed. Logs of any length take bounded memory: one line at a time, and about 100
    bytes a step.
    """
    path, given = Path(path), RunSetting(global_batch=global_batch, seq_len=seq_len, sequences=sequences, gpus=gpus)
    if path.is_dir():
        if (path / METRICS).is_file():
            return read_table(path / METRICS, given)
        if any(path.rglob("*tfevents*")):
            return read_event_file(path, given)
        raise bad(str(path), "is a folder without metrics.csv and without event files", "name the log inside it")
    if not path.is_file():
        raise bad(str(path), "no such file", "check the path")
    if "tfevents" in path.name:
        return read_event_file(path, given)
    if path.suffix.casefold() in TABLES:
        return read_table(path, given)
    return read_log(path, given)


def read_table(path: Path, setting: RunSetting) -> MeasuredRun:
    """Return the run of a CSV file with a column of steps (lines count without one) and one of times or rates. Raises
    SpecError for a file that has none of them, and names the line of what is no number."""
    with path.open(encoding="utf-8-sig", newline="", errors="replace") as file:
        reader = csv.reader(file)
        names = [re.sub(r"\(.*\)", "", name).strip().casefold() for name in next(reader, [])]
        columns = [COLUMNS.get(name) for name in names]
        timed = ("seconds", "tokens_per_second", "gpu_tokens_per_second", "samples_per_second", "clock")
        if not any(column and column[0] in timed for column in columns):
            hint = (
                f"{suggestion(names[0] if names else '', COLUMNS)}; a run needs step,seconds or step,tokens_per_second"
            )
            raise bad(f"{path}, line 1", f"no column has times: {', '.join(names)[:200] or 'nothing'}", hint)
        rows = Rows(mean=False)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            values = _values(cells, columns, f"{path}, line {reader.line_num}")
            step = values.pop("step", NAN)
            rows.add(len(rows) + 1 if math.isnan(step) else int(step), reader.line_num, values)
    if not len(rows):
        raise bad(str(path), "has no rows", "give a step a row")
    steps, restarts, notes = steps_of(rows, setting)
    trainer = "train" if set(names) >= OURS else "table"
    return MeasuredRun(name=str(path), trainer=trainer, steps=steps, setting=setting, events=restarts, notes=notes)


def _values(cells: Sequence[str], columns: Sequence[tuple[str, float] | None], place: str) -> dict[str, float]:
    if len(cells) != len(columns):
        raise bad(place, f"{len(cells)} cells for {len(columns)} columns", "mend the line")
    values: dict[str, float] = {}
    for cell, column in zip(cells, columns, strict=True):
        if column is None or cell.strip().casefold() in BLANK:
            continue
        name, factor = column
        try:
            value = float(cell) * factor
        except ValueError:
            raise bad(place, f"{cell.strip()[:40]!r} is not a number", "write a number, or leave it empty") from None
        if name != "loss" and not 0.0 <= value < 1e18:
            raise bad(place, f"{cell.strip()[:40]} is out of range", "write a number from 0, or leave it empty")
        values[name] = value
    return values
