"""From the figures of lines to steps: seconds from whatever a trainer reports, each step once."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.runs.run import Event, RunSetting, Steps

NAN = float("nan")
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
        tokens = setting.global_batch * setting.seq_len
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
