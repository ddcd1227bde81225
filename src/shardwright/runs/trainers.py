"""How each trainer writes a step into its log, as data. Every pattern is of the trainer's own format string, which the
tests name (`tests/runs/data`). Result logs of MLPerf training are `:::MLLOG {…}`, a JSON object a line
(mlcommons/logging, mlperf_logging/mllog)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from shardwright.records import record
from shardwright.runs.run import Event, Rows
from shardwright.units import GIBIBYTE

MEBIBYTE, MILLI = 2.0**20, 1e-3
NUMBER = r"([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


@record
class Dialect:
    """How a trainer reports a step. `mark` is what its lines, and no others, hold; `figures` are patterns with one
    group, and what their unit is in ours; of `needs` a line must have one each. `mean` as in `run.Rows`. A dialect
    of a lower `rank` is taken where a log has several: one clock of the trainer's own before what is derived."""

    trainer: str
    mark: re.Pattern[str]
    figures: Mapping[str, tuple[re.Pattern[str], float]]
    needs: tuple[tuple[str, ...], ...]
    mean: bool = True
    rank: int = 0


TIMED = (("step",), ("seconds",))


def _dialect(
    trainer: str,
    mark: str,
    *,
    needs: tuple[tuple[str, ...], ...] = TIMED,
    mean: bool = True,
    rank: int = 0,
    **patterns: tuple[str, float] | str,
) -> Dialect:
    """Return a dialect, of whose figures a pattern alone is in our unit."""
    pairs = {name: (value, 1.0) if isinstance(value, str) else value for name, value in patterns.items()}
    figures = {name: (re.compile(pattern.replace("NUMBER", NUMBER)), unit) for name, (pattern, unit) in pairs.items()}
    return Dialect(trainer=trainer, mark=re.compile(mark), figures=figures, needs=needs, mean=mean, rank=rank)


DIALECTS = (
    _dialect(
        "megatron",
        r"elapsed time per iteration \(m?s\):",
        needs=(("step",), ("seconds", "whole_seconds")),
        step=r"iteration[: ]\s*(\d+)\s*(?:/|\|)",
        seconds=(r"elapsed time per iteration \(ms\):\s*NUMBER", MILLI),
        whole_seconds=r"elapsed time per iteration \(s\):\s*NUMBER",
        gpu_tflops=r"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs):\s*NUMBER",
        gpu_tokens_per_second=r"tokens per gpu per second \(tgs\):\s*NUMBER",
        global_batch=r"global batch size:\s*(\d+)",
        loss=r"(?:lm loss|reduced_train_loss)[: ]\s*NUMBER",
    ),
    _dialect(
        "nemo",
        r'train_step_timing in s"?[:=]',
        needs=(("step", "epoch_step"), ("seconds",)),
        mean=False,
        rank=1,
        step=r'global_step"?[:=]\s*(\d+)',
        epoch_step=r"iteration (\d+)/",
        seconds=r'train_step_timing in s"?[:=]\s*NUMBER',
        gpu_tflops=r'(?:TFLOPS_per_GPU|tflops_per_sec_per_gpu)"?[:=]\s*NUMBER',
        global_batch=r"global_batch_size[:=]\s*(\d+)",
        loss=r'reduced_train_loss"?[:=]\s*NUMBER',
    ),
    _dialect(
        "nanotron",
        r"(?:elapsed_)?time_per_iteration_ms:",
        step=r"iteration: (\d+)\s*/",
        seconds=(r"(?:elapsed_)?time_per_iteration_ms:\s*NUMBER([KMBGT]?)", MILLI),
        tokens_per_second=r"tokens_per_sec:\s*NUMBER([KMBGT]?)",
        gpu_tokens_per_second=r"tokens_per_sec_per_gpu:\s*NUMBER([KMBGT]?)",
        gpu_tflops=r"model_tflops_per_gpu:\s*NUMBER",
        global_batch=r"global_batch_size: (\d+) \|",  # 1.02K is rounded
        memory_bytes=r"cuda_max_memory_reserved:\s*NUMBER([KMBGT]?)",
        loss=r"lm_loss:\s*NUMBER",
    ),
    _dialect(
        "torchtitan",
        r"(?<!validate )step:\s+\d+\s+(?:loss:|.*(?:tps|wps):)",
        needs=(("step",), ("gpu_tokens_per_second", "clock")),
        rank=2,
        step=r"step:\s+(\d+)",
        gpu_tokens_per_second=r"(?:tps|wps):\s*NUMBER",
        gpu_tflops=r"tflops:\s*NUMBER",
        memory_bytes=(r"memory:\s*NUMBER\s*GiB", GIBIBYTE),
        loss=r"loss:\s*NUMBER",
    ),
    _dialect(
        "deepspeed",
        r"steps?:\s*\d+(?:\s*/\s*\d+)? .*iter time \(s\):",
        rank=1,
        step=r"steps?:\s*(\d+)",
        seconds=r"iter time \(s\):\s*NUMBER",
        samples_per_second=r"samples/sec:\s*NUMBER",
        loss=r"loss:\s*NUMBER",
    ),
    _dialect(
        "deepspeed",
        r"CurrSamplesPerSec=",
        needs=(("step", "old_step"), ("samples_per_second",)),
        mean=False,
        rank=3,
        step=r"global_step=(\d+)",
        old_step=r"\d+/(\d+), RunningAvg",
        samples_per_second=r"CurrSamplesPerSec=NUMBER",
        memory_bytes=(r"MaxMemAllocated=NUMBER", GIBIBYTE),
    ),
    _dialect(
        "llama-factory",
        r'"current_steps":.*"elapsed_time":',
        needs=(("step",), ("clock",)),
        rank=4,
        step=r'"current_steps":\s*(\d+)',
        clock=r'"elapsed_time":\s*"([^"]+)"',
        tokens_per_second=r'"throughput":\s*"?NUMBER',
        loss=r'"loss":\s*NUMBER',
    ),
    _dialect(
        "megatron-bridge",
        r"Step Time ?: ?\d",
        needs=(("seconds",),),
        rank=5,
        seconds=r"Step Time ?: ?NUMBER\s*s",
        gpu_tflops=r"GPU utilization: ?NUMBER\s*MODEL_TFLOP",
    ),
)
SPELLINGS = {"whole_seconds": "seconds", "epoch_step": "step", "old_step": "step"}  # of one figure in a dialect
# One bar of tqdm that counts steps: 12/500 [01:40<1:07:20,  8.28s/it]; bars of files and samples have other units.
BAR = re.compile(r"(\d+)/(\d+) \[((?:\d+ days?, )?[\d:]+)<[^\],]*,\s*[\d.?]+\s*(?:s/it|it/s)")
LOGGED = re.compile(r"\{['\"](?:loss|train_loss|train_runtime|memory/|eval_)[^{}]*\}")
PAIR = re.compile(r"['\"]([^'\"]+)['\"]:\s*['\"]?([-+]?[\d.]+(?:[eE][-+]?\d+)?)['\"]?")
MLLOG = ":::MLLOG"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
CLOCK = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)")

# What lies between steps: lines that say that something begins, and with how many seconds it ended.
BETWEEN = (
    (
        "evaluation",
        re.compile(
            r"validation loss at|^\s*Evaluat(?:e|ing)[ \d(]|\*\*\*\*\* Running Evaluation|validate step:"
            r"|['\"]eval_(?:loss|runtime)['\"]|^\s*evaluating \.\.\."
        ),
        re.compile(r"['\"]eval_runtime['\"]:\s*['\"]?([\d.]+)"),
    ),
    (
        "checkpoint",
        re.compile(
            r"saving checkpoint (?:at|to)|successfully saved checkpoint|Sav(?:ing|ed) (?:the |model )?checkpoint"
            r"|Finished saving the checkpoint|Checkpoint global_step\d+ is about to be saved|save-checkpoint \.\.\.",
            re.IGNORECASE,
        ),
        re.compile(r"(?:Finished saving the checkpoint[^\d]*in|save-checkpoint [. ]+:) \(?([\d.]+)(, [\d.]+\))?"),
    ),
    ("out_of_memory", re.compile(r"OutOfMemoryError|CUDA out of memory|HIP out of memory"), None),
    ("skipped", re.compile(r"OVERFLOW! Rank|Grad overflow on iteration"), None),
)
# Settings that trainers print before they start: `name ..... value`, `name: value`, or a banner of their own.
SETTINGS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "gpus": r"(?:^|[\s,])(?:world_size|world size)[ .:=]+(\d+)|using world size: (\d+)",
        "global_batch": r"(?:^|\s)(?:global_batch_size|train_batch_size|global batch size)[ .:=]+(\d+)"
        r"|Total train batch size \(w\. parallel, distributed & accumulation\) = (\d[\d,]*)",
        "micro_batch": r"(?:^|\s)(?:micro_batch_size|train_micro_batch_size_per_gpu|local batch size)[ .:=]+(\d+)"
        r"|Instantaneous batch size per device = (\d[\d,]*)",
        "seq_len": r"(?:^|\s)(?:seq_length|sequence length|sequence_len|max_seq_length)[ .:=]+(\d+)",
        "tp": r"(?:^|[\s,])(?:tensor_model_parallel_size|tensor-model-parallel size:|tp[=:])[ .:=]*(\d+)",
        "pp": r"(?:^|[\s,])(?:pipeline_model_parallel_size|pipeline-model-parallel size:|pp[=:])[ .:=]*(\d+)",
        "cp": r"(?:^|[\s,])(?:context_parallel_size|context-parallel-size:|cp[=:])[ .:=]*(\d+)",
        "ep": r"(?:^|[\s,])(?:expert_model_parallel_size|expert-model-parallel-size:)[ .:=]*(\d+)",
        "dp": r"(?:^|[\s,])(?:data_parallel_size|data-parallel-size:|data-parallel size:)[ .:=]*(\d+)",
        "parameters": r"size: ([\d,]+) total parameters|Number of trainable parameters = ([\d,]+)",
        "total_steps": r"Total optimization steps = ([\d,]+)|total steps (\d+)",
    }.items()
}
GPU = re.compile(r"CUDA capacity: (.+?) with [\d.]+GiB memory")
ARGUMENT = re.compile(r"^\s*(?:\[.*?\]\s*)?(?:\S*\d*: )?\s*([a-z][a-z0-9_]+) \.{2,} (\S.*?)\s*$")
TIMER = re.compile(r"^\s*(?:\S+: )?\s*([a-z][\w/-]+) \.{3,}: (?:\((\d[\d.]*), (\d[\d.]*)\)|(\d[\d.]*))\s*$")
BREAKDOWN = re.compile(r"time \(ms\) \| (.*)")
BREAKDOWN_PART = re.compile(r"(\w+): ([\d.]+)")
MEMORY = (
    (re.compile(r"memory \(MB\) .*max reserved: ([\d.]+)"), MEBIBYTE),
    (re.compile(r"memory \(GB\) .*mem-max-reserved-gigabytes: ([\d.]+)"), 1e9),
)


def number(match: re.Match[str], unit: float) -> float:
    """Return the number of a pattern's first group, by the suffix in its second if there is one, in our unit."""
    suffix = match[2] if match.re.groups > 1 else ""
    return float(match[1].replace(",", "")) * SUFFIXES[suffix] * unit


def clock_seconds(text: str) -> float | None:
    """Return the time that a line begins with, in seconds, None without one."""
    match = CLOCK.search(text, 0, 300)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match[1].replace(",", ".")).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def elapsed_seconds(text: str) -> float | None:
    """Return seconds of `1:02:03`, `02:03` or `1 day, 0:00:10`, None for other texts."""
    match = re.fullmatch(r"(?:(\d+) days?, )?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


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
