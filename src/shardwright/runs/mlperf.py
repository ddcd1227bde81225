"""Result logs of MLPerf training: `:::MLLOG {…}`, a JSON object a line (mlcommons/logging, mlperf_logging/mllog)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.runs.run import Event, Rows

SECONDS = ("train_step_time", "train_step_timing in s", "step_time")  # what submitters call a step's seconds
SAMPLES = ("samples_count", "step", "step_num", "epoch_num")  # where they count samples


@dataclass(slots=True)
class ResultLog:
    """What the lines so far say. Steps are samples over the global batch; three ways to time them are kept apart."""

    global_batch: int | None = None
    seq_len: int | None = None
    arguments: dict[str, str] = field(default_factory=dict)
    stats: Rows = field(default_factory=lambda: Rows(mean=False))
    points: Rows = field(default_factory=Rows)
    blocks: Rows = field(default_factory=Rows)
    events: list[Event] = field(default_factory=list)
    opened: dict[str, tuple[float, float]] = field(default_factory=dict)  # of intervals: seconds and samples

    def rows(self) -> Rows:
        """Return the rows that time steps best: the submitter's statistics, losses with their times, blocks."""
        return next((rows for rows in (self.stats, self.points, self.blocks) if len(rows) > 1), self.stats)


def add_result(log: ResultLog, text: str, line: int) -> bool:
    """Add a line's object; False where it is none."""
    try:
        entry = json.loads(text)
        key, value, clock = entry["key"], entry["value"], float(entry["time_ms"]) / 1e3
        about = entry["metadata"] or {}
    except (ValueError, KeyError, TypeError):
        return False
    samples = next((float(about[name]) for name in SAMPLES if isinstance(about.get(name), int | float)), None)
    if key == "global_batch_size" and isinstance(value, int):
        log.global_batch = value
    elif key in ("max_sequence_length", "sequence_length") and isinstance(value, int):
        log.seq_len = value
    elif key == "tracked_stats" and isinstance(value, Mapping):
        _add_stats(log, value, samples, clock, line)
    elif key == "train_loss" and samples is not None:
        log.points.add(_step(log, samples), line, {"clock": clock, "loss": _number(value)})
    elif key.endswith("_start"):
        log.opened[key.removesuffix("_start")] = clock, samples or 0.0
    elif key.endswith("_stop"):
        _close(log, key.removesuffix("_stop"), samples, clock, line)
    elif isinstance(value, int | float | str) and entry.get("event_type") == "POINT_IN_TIME":
        log.arguments.setdefault(key, str(value))
    return True


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _step(log: ResultLog, samples: float | None) -> int:
    return round((samples or 0.0) / (log.global_batch or 1))


def _add_stats(log: ResultLog, value: Mapping[str, Any], samples: float | None, clock: float, line: int) -> None:
    seconds = next((_number(value[name]) for name in SECONDS if name in value), float("nan"))
    rate = _number(value.get("throughput"))
    if seconds == seconds or rate == rate:
        # NaN times unpublished figures; the step after the last where none is said.
        step = _step(log, samples) if samples is not None else (log.stats.step[-1] + 1 if len(log.stats) else 1)
        log.stats.add(step, line, {"seconds": seconds, "samples_per_second": rate, "clock": clock})


def _close(log: ResultLog, name: str, samples: float | None, clock: float, line: int) -> None:
    start = log.opened.pop(name, None)
    if start is None:
        return
    began, first = start
    if name == "eval":
        step = log.points.step[-1] if len(log.points) else 0
        log.events.append(Event(kind="evaluation", line=line, step=step, seconds=clock - began))
    elif name == "block" and samples is not None and log.global_batch and samples > first:
        steps = (samples - first) / log.global_batch
        log.blocks.add(_step(log, samples), line, {"seconds": (clock - began) / steps, "clock": clock})
