"""What a training run measured, step by step, what its file says of the setting, and steps from the figures of lines:
seconds from whatever a trainer reports, each step once.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from shardwright.arrays import Columns, Floats, Ints
from shardwright.records import record

EventKind = Literal["evaluation", "checkpoint", "restart", "out_of_memory", "skipped"]
NAN = float("nan")


@record
class Steps(Columns):
    """The measured steps of a run, one row for each line that reports some, [N].

    `seconds` are those of one iteration, the mean of the `covers` iterations up to iteration `step`. Figures that a
    file does not give are NaN: `tokens_per_second` and `samples_per_second` are of the whole job,
    `gpu_tokens_per_second` of one GPU; `memory_bytes` is the peak on the GPU that reports; `clock` is the time of the
    line in seconds, of which only differences mean something. `line` counts from 1 (of an event file: records).
    """

    step: Ints
    seconds: Floats
    covers: Ints
    tokens_per_second: Floats
    gpu_tokens_per_second: Floats
    samples_per_second: Floats
    gpu_tflops: Floats
    loss: Floats
    memory_bytes: Floats
    clock: Floats
    line: Ints


@record
class Event:
    """Something between steps that a file tells: what, in which line, after which step, and its seconds if it says."""

    kind: EventKind
    line: int
    step: int
    seconds: float | None = None


@record
class Timer:
    """A timer that the trainer itself prints (of Megatron-LM `forward-backward`, of DeepSpeed `bwd_allreduce`): median
    over its lines of the seconds of the fastest and the slowest rank, the same where one rank reports."""

    name: str
    least_seconds: float
    lines: int


@record
class RunSetting:
    """What the file of a run says of its setting; None and "" where it does not. `arguments` are all settings that the
    trainer prints, under its own names, and `lines` says where each named field stands. No file says the `sequences` of
    a sample: of a loss over preferences it may be a pair."""

    gpus: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    seq_len: int | None = None
    sequences: int = 1
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    parameters: float | None = None
    gpu: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)


@record
class MeasuredRun:
    """A run as its file tells it. `trainer` is who wrote the file (`trainers.TRAINERS`, "mlperf", "table" or
    "tensorboard"); `notes` say in words what was taken how."""

    name: str
    trainer: str
    steps: Steps
    setting: RunSetting = RunSetting()
    events: tuple[Event, ...] = ()
    timers: tuple[Timer, ...] = ()
    notes: tuple[str, ...] = ()


FIGURES = tuple(name for name in Steps.__dataclass_fields__ if name not in ("step", "covers", "line"))


@dataclass(slots=True)
class Rows:
    """Figures of lines as they are read, a machine number each: a million lines take some hundred megabytes less than
    as objects. `mean` says that a line is the mean of all steps since the one before, and not of its last step."""

    mean: bool = True
    step: array[int] = field(default_factory=lambda: array("q"))
    line: array[int] = field(default_factory=lambda: array("q"))
    figures: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in FIGURES})

    def add(self, step: int, line: int, values: Mapping[str, float]) -> None:
        """Add a line; figures that it lacks are not known. A line that repeats the last step replaces it: a bar that
        is drawn again, or another rank, of which the slowest counts."""
        if self.step and self.step[-1] == step:
            for name, column in self.figures.items():
                value = values.get(name, NAN)
                if name == "seconds" and column[-1] > value:
                    continue
                column[-1] = column[-1] if value != value else value
            return
        self.step.append(step)
        self.line.append(line)
        for name, column in self.figures.items():
            column.append(values.get(name, NAN))

    def __len__(self) -> int:
        return len(self.step)


def steps_of(rows: Rows, setting: RunSetting) -> tuple[Steps, tuple[Event, ...], tuple[str, ...]]:
    """Return the steps of some rows, the restarts among them, and how seconds were taken where no line has them.

    Seconds come, in this order, from the line; from samples a second and the global batch; from tokens a second; from
    the clock of two lines.
    """
    step, line = (np.array(column, dtype=np.int64) for column in (rows.step, rows.line))
    figures = {name: np.array(column, dtype=np.float64) for name, column in rows.figures.items()}
    apart = np.diff(step, prepend=step[:1])
    ahead = apart > 0
    usual = int(np.median(apart[ahead])) if ahead.any() else 1
    covers = np.where(ahead & rows.mean, apart, usual if rows.mean else 1)
    covers[:1] = np.minimum(covers[:1], np.maximum(step[:1], 1))
    steps = Steps(step=step, covers=np.maximum(covers, 1), line=line, **figures)
    seconds, note = _seconds(steps, setting, apart)
    backward = np.flatnonzero(apart[1:] < 0) + 1
    restarts = tuple(Event(kind="restart", line=int(line[place]), step=int(step[place])) for place in backward)
    return replace(steps, seconds=seconds), restarts, (note,) if note else ()


def _seconds(steps: Steps, setting: RunSetting, apart: Floats) -> tuple[Floats, str]:
    """Return seconds of an iteration for every row, and in words what they were taken from."""
    if np.isfinite(steps.seconds).any():
        return steps.seconds, ""
    batch, tokens, gpus = setting.global_batch, None, setting.gpus
    if setting.global_batch and setting.seq_len:
        tokens = setting.global_batch * setting.seq_len * setting.sequences
    ways: list[tuple[Floats, str]] = []
    if batch:
        ways.append((batch / steps.samples_per_second, f"from samples a second and the global batch of {batch}"))
    if tokens:
        words = f"from tokens a second and {tokens:,} tokens a step"
        ways.append((tokens / steps.tokens_per_second, words))
        if gpus:
            ways.append((tokens / (steps.gpu_tokens_per_second * gpus), f"{words} on {gpus} GPUs"))
    forward = np.where(apart > 0, apart, np.nan)
    ways.append((np.diff(steps.clock, prepend=np.nan) / forward, "from the time between lines"))
    for seconds, words in ways:
        positive = np.where(seconds > 0.0, seconds, np.nan)
        if np.isfinite(positive).any():
            return positive, f"seconds of a step are taken {words}"
    return steps.seconds, ""
