"""What a training run measured, step by step, and what its file says of the setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shardwright.arrays import Columns, Floats, Ints

EventKind = Literal["evaluation", "checkpoint", "restart", "out_of_memory", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something between steps that a file tells: what, in which line, after which step, and its seconds if it says."""

    kind: EventKind
    line: int
    step: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A timer that the trainer itself prints (of Megatron-LM `forward-backward`, of DeepSpeed `bwd_allreduce`): median
    over its lines of the seconds of the fastest and the slowest rank, the same where one rank reports."""

    name: str
    least_seconds: float
    most_seconds: float
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """What the file of a run says of its setting; None and "" where it does not. `arguments` are all settings that the
    trainer prints, under its own names, and `lines` says where each named field stands."""

    gpus: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    seq_len: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    parameters: float | None = None
    gpu: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
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
