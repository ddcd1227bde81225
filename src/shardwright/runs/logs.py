"""A run from the log of a trainer: every line is looked at once, and what does not tell of steps is passed over."""

from __future__ import annotations

import gzip
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from shardwright.errors import Problem, SpecError, bad
from shardwright.progress import tell
from shardwright.rows import holding
from shardwright.runs.run import NAN, Event, EventKind, MeasuredRun, Rows, RunSetting, Timer, steps_of
from shardwright.runs.trainers import (
    ANSI,
    ARGUMENT,
    BAR,
    BETWEEN,
    BREAKDOWN,
    BREAKDOWN_PART,
    DIALECTS,
    GPU,
    LOGGED,
    MEMORY,
    MLLOG,
    PAIR,
    SETTINGS,
    SPELLINGS,
    TIMER,
    Dialect,
    ResultLog,
    add_result,
    clock_seconds,
    elapsed_seconds,
    number,
)

GARBLED = 0.01  # of the lines of steps, which may be garbled by other processes' output; chosen, 0.005 to 0.02
MOST_EVENTS, MOST_TIMES = 100_000, 20_000  # kept of each kind, so that memory stays bounded
WINDOW = 10.0  # seconds between drawings of a bar that make a row: it counts whole seconds; chosen, 5 to 20
BRIDGE = re.compile(r"MODEL_TFLOP/s/GPU|megatron[./]bridge")
TRL, AXOLOTL = ("num_tokens", "mean_token_accuracy", "rewards/", "entropy"), ("memory/", "tokens/", "ppl")
# Words of which a line must hold one to be worth a closer look, for steps and for what is around them. Plain search
# for words is 20 times as fast as a pattern of them all, and most of a large log says nothing.
OF_STEPS = (
    *("per iteration (", "_per_iteration_ms", "train_step_timing", "step: ", "steps: ", "CurrSamples"),
    *("current_steps", "Step Time", MLLOG),
)
OF_TRAINERS = ("loss'", 'loss"', "train_runtime")
AROUND = (
    *("alidation loss", "valuat", "validate", "eval_", "heckpoint", "ut of memory", "OVERFLOW", "overflow on", "..."),
    *("world", "batch", "seq", "parallel", "size: ", "parameters =", "steps =", "capacity:", "time (ms)", "memory ("),
    *("total steps", "megatron", "MODEL_TF", "axolotl"),
)
BLOCK = 1 << 20
LONGEST = 1 << 16  # bytes of a line that are looked at: what is longer is no line of a step


@dataclass(slots=True)
class _Log:
    """What the lines so far say."""

    rows: list[Rows] = field(default_factory=lambda: [Rows(mean=dialect.mean) for dialect in DIALECTS])
    bars: dict[int, tuple[array[int], array[float], array[int]]] = field(default_factory=dict)
    logged: Rows = field(default_factory=Rows)
    summary: dict[str, float] = field(default_factory=dict)
    results: ResultLog = field(default_factory=ResultLog)
    events: list[Event] = field(default_factory=list)
    settings: dict[str, tuple[float, int]] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    timers: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    garbled: list[tuple[int, str]] = field(default_factory=list)
    gpu: str = ""
    memory: float = NAN
    tflops: float = NAN
    hints: set[str] = field(default_factory=set)
    cut: int = 0


def read_log(path: Path, given: RunSetting) -> MeasuredRun:
    """Return the run that the log of a trainer tells of. Raises SpecError where no line tells of a step, and with the
    line where those that do are malformed."""
    log = _Log()
    for line, text, whole in lines_of(path):
        _look(log, line, text, whole=whole)
    trainer, rows, notes = _steps_taken(log)
    _require_whole(log, rows, str(path))
    setting = _setting(log, given)
    steps, restarts, more = steps_of(rows, setting)
    return MeasuredRun(
        name=str(path),
        trainer=trainer,
        steps=steps,
        setting=setting,
        events=tuple(sorted((*log.events, *log.results.events, *restarts), key=lambda event: event.line)),
        timers=tuple(
            Timer(name=name, least_seconds=median(low for low, _ in times), lines=len(times))
            for name, times in log.timers.items()
        ),
        notes=(*notes, *more, *_garbled_words(log)),
    )


def _look(log: _Log, line: int, text: str, *, whole: bool) -> None:
    """Take what a line says."""
    if "\x1b" in text:
        text = ANSI.sub("", text)
    if _has(text, OF_STEPS):
        _look_for_steps(log, line, text, whole=whole)
        if MLLOG in text and not add_result(log.results, text.partition(MLLOG)[2].strip(), line):
            _spoil(log, line, "is no JSON object after :::MLLOG", whole=whole)
    if "s/it" in text or "it/s" in text:
        for bar in BAR.finditer(text):
            _add_bar(log, line, bar)
    if _has(text, OF_TRAINERS) and (match := LOGGED.search(text)):
        _add_logged(log, line, dict(PAIR.findall(match[0])))
    if _has(text, AROUND):
        _look_around(log, line, text)


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _look_around(log: _Log, line: int, text: str) -> None:
    for kind, begins, seconds in BETWEEN:
        if begins.search(text) and len(log.events) < MOST_EVENTS:
            _add_event(log, kind, line, seconds.search(text) if seconds else None)
    _look_for_settings(log, line, text)
    if BRIDGE.search(text):
        log.hints.add("bridge")
    if "axolotl" in text:
        log.hints.add("axolotl")


def _look_for_steps(log: _Log, line: int, text: str, *, whole: bool) -> None:
    for dialect, rows in zip(DIALECTS, log.rows, strict=True):
        if not dialect.mark.search(text):
            continue
        values = _values(dialect, text, whole=whole)
        if dialect.trainer == "megatron-bridge":
            log.tflops = values.get("gpu_tflops", NAN)
            values.setdefault("step", float(len(rows) + 1))
        missing = [need for need in dialect.needs if not any(SPELLINGS.get(name, name) in values for name in need)]
        if missing:
            words = " and no ".join(need[0].replace("_", " ") for need in missing)
            _spoil(log, line, f"is a step of {dialect.trainer} with no {words} in it", whole=whole)
            continue
        if dialect.trainer == "megatron" and log.tflops == log.tflops:
            values.setdefault("gpu_tflops", log.tflops)
        batch = values.pop("global_batch", None)
        if batch:
            log.settings["global_batch"] = batch, line
        if log.memory == log.memory:
            values.setdefault("memory_bytes", log.memory)
        rows.add(int(values.pop("step")), line, values)


def _values(dialect: Dialect, text: str, *, whole: bool) -> dict[str, float]:
    """Return the figures of a line, of one that is cut off without a number at its end, which may lack digits."""
    values: dict[str, float] = {}
    clock = clock_seconds(text)
    if clock is not None:
        values["clock"] = clock
    for name, (pattern, unit) in dialect.figures.items():
        match = pattern.search(text)
        if match is None or (not whole and match.end() == len(text)):
            continue
        name = SPELLINGS.get(name, name)
        value = elapsed_seconds(match[1]) if name == "clock" else number(match, unit)
        if value is not None and (value > 0.0 or name in ("step", "loss")):
            values.setdefault(name, value)
    return values


def _spoil(log: _Log, line: int, words: str, *, whole: bool) -> None:
    if whole:
        log.garbled.append((line, words))
    else:
        log.cut = line


def _add_bar(log: _Log, line: int, match: re.Match[str]) -> None:
    done, total, elapsed = int(match[1]), int(match[2]), elapsed_seconds(match[3])
    if elapsed is None or total < 2 or done > total:
        return
    steps, seconds, places = log.bars.setdefault(total, (array("q"), array("d"), array("q")))
    # The last drawing of a window stands for it, so that rows are as far apart as the clock needs.
    if len(steps) > 1 and done >= steps[-1] and seconds[-1] <= elapsed < seconds[-2] + WINDOW:
        steps[-1], seconds[-1], places[-1] = done, elapsed, line
        return
    steps.append(done)
    seconds.append(elapsed)
    places.append(line)


def _add_logged(log: _Log, line: int, pairs: Mapping[str, str]) -> None:
    """Take what a Trainer of Hugging Face logs: a dictionary a line, formatted or not."""
    if any(key.startswith(TRL) for key in pairs):
        log.hints.add("trl")
    if any(key.startswith(AXOLOTL) for key in pairs):
        log.hints.add("axolotl")
    if "train_runtime" in pairs:
        log.summary = {key: float(value) for key, value in pairs.items() if _is_number(value)} | {"line": float(line)}
    if "loss" not in pairs or not _is_number(pairs["loss"]):
        return
    rates = ("tokens/train_per_sec_per_gpu", "tokens_per_second_per_gpu")
    rate = next((float(pairs[key]) for key in rates if key in pairs and _is_number(pairs[key])), NAN)
    memory = next((float(pairs[key]) for key in pairs if key.startswith("memory/device_reserved")), NAN)
    values = {
        "loss": float(pairs["loss"]),
        "gpu_tokens_per_second": rate if rate > 0.0 else NAN,
        "memory_bytes": memory * 2.0**30,
    }
    log.logged.add(len(log.logged) + 1, line, values)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?", text) is not None


def _add_event(log: _Log, kind: str, line: int, match: re.Match[str] | None) -> None:
    names: dict[str, EventKind] = {name: name for name in ("evaluation", "checkpoint", "out_of_memory", "skipped")}
    last = next((rows.step[-1] for rows in log.rows if len(rows)), 0)
    scale = 1e-3 if match is not None and match.re.groups > 1 and match[2] else 1.0
    seconds = float(match[1]) * scale if match is not None else None
    log.events.append(Event(kind=names[kind], line=line, step=last, seconds=seconds))


def _look_for_settings(log: _Log, line: int, text: str) -> None:
    for name, pattern in SETTINGS.items():
        match = None if name in log.settings else pattern.search(text)
        if match:
            value = next(float(group.replace(",", "")) for group in match.groups() if group)
            log.settings[name] = value, line
    if match := GPU.search(text):
        log.gpu = match[1]
    if match := ARGUMENT.match(text):
        if len(log.arguments) < MOST_TIMES:
            log.arguments.setdefault(match[1], match[2])
    elif match := TIMER.match(text):
        low, high = (match[2], match[3]) if match[2] else (match[4], match[4])
        _add_timer(log, match[1], float(low), float(high))
    elif match := BREAKDOWN.search(text):
        for name, value in BREAKDOWN_PART.findall(match[1]):
            _add_timer(log, name, float(value), float(value))
    for pattern, unit in MEMORY:
        if match := pattern.search(text):
            _add_memory(log, float(match[1]) * unit)


def _add_memory(log: _Log, memory_bytes: float) -> None:
    """Megatron-LM reports its memory once, behind the first step: it holds for all."""
    log.memory = memory_bytes
    for rows in log.rows:
        if len(rows):
            rows.figures["memory_bytes"][-1] = memory_bytes


def _add_timer(log: _Log, name: str, low: float, high: float) -> None:
    times = log.timers.setdefault(name, [])
    if len(times) < MOST_TIMES:
        times.append((low * 1e-3, high * 1e-3))


def _steps_taken(log: _Log) -> tuple[str, Rows, tuple[str, ...]]:
    """Return whose steps a log has, the rows, and what to know of them."""
    order = sorted(range(len(DIALECTS)), key=lambda place: (len(log.rows[place]) < 2, DIALECTS[place].rank))
    place = next((place for place in order if len(log.rows[place])), None)
    face = "trl" if "trl" in log.hints else "axolotl" if "axolotl" in log.hints else "transformers"
    bar = _bar_rows(log)
    if place is not None and not (DIALECTS[place].rank > 2 and len(bar) > 2):
        trainer = DIALECTS[place].trainer
        return ("megatron-bridge" if trainer == "megatron" and "bridge" in log.hints else trainer), log.rows[place], ()
    if len(log.results.rows()):
        return "mlperf", log.results.rows(), ()
    if len(bar):
        return face, bar, ("seconds are of the progress bar, which counts whole seconds",)
    if len(log.logged):
        if log.summary and not np.isfinite(log.logged.figures["gpu_tokens_per_second"]).any():
            return face, _summary_rows(log), (MEAN_OF_ALL,)
        return face, log.logged, ("steps are counted by what is logged",)
    return face, _summary_rows(log), (MEAN_OF_ALL,)


MEAN_OF_ALL = "one figure for the whole run, warm-up, evaluations and checkpoints among it"


def _summary_rows(log: _Log) -> Rows:
    rows, rate = Rows(mean=False), log.summary.get("train_steps_per_second", 0.0)
    if rate > 0.0:
        steps = max(round(rate * log.summary.get("train_runtime", 0.0)), 1)
        rows.add(steps, int(log.summary["line"]), {"seconds": 1.0 / rate, "loss": log.summary.get("train_loss", NAN)})
    return rows


def _bar_rows(log: _Log) -> Rows:
    """Return a row for each window of the bar that counts steps: that of the total which the trainer says, else the one
    that was drawn the longest."""
    rows = Rows()
    if not log.bars:
        return rows
    total = int(log.settings.get("total_steps", (0.0, 0))[0])
    if total not in log.bars:
        total = max(log.bars, key=lambda key: (max(log.bars[key][1]), key))
    steps, seconds, places = log.bars[total]
    losses, lines = log.logged.figures["loss"], np.array(log.logged.line)
    for step, elapsed, line in zip(steps, seconds, places, strict=True):
        place = int(np.searchsorted(lines, line, side="right")) - 1
        rows.add(step, line, {"clock": elapsed, "loss": losses[place] if place >= 0 else NAN})
    return rows


def _require_whole(log: _Log, rows: Rows, path: str) -> None:
    """Refuse a log without steps, and one with more garbled lines than come of processes that write at once."""
    if log.garbled and len(log.garbled) > GARBLED * len(rows):
        raise SpecError(
            *(Problem(f"{path}, line {line}", words, "mend or remove the line") for line, words in log.garbled[:5])
        )
    if not len(rows):
        trainers = "Megatron-LM, Megatron-Bridge, NeMo, torchtitan, DeepSpeed, Trainers, nanotron, `train` or MLPerf"
        raise bad(path, f"no line tells of a step as {trainers} write it", "give a log with step times, or a CSV file")


def _garbled_words(log: _Log) -> tuple[str, ...]:
    places = ", ".join(str(line) for line, _ in log.garbled[:5])
    return holding(
        (log.garbled, f"{len(log.garbled)} garbled lines are left out: {places}"),
        (log.cut, f"the last line, {log.cut}, is cut off and left out"),
    )


def _setting(log: _Log, given: RunSetting) -> RunSetting:
    """Return what a log says of its setting, and the launch (`given`) where it does not."""
    said: dict[str, tuple[float, int]] = dict(log.settings)
    for name, value in (("global_batch", log.results.global_batch), ("seq_len", log.results.seq_len)):
        if value:
            said[name] = float(value), 0
    whole = {name: int(value) for name, (value, _) in said.items() if name not in ("parameters", "total_steps")}
    setting = RunSetting(
        **whole,
        parameters=said["parameters"][0] if "parameters" in said else None,
        gpu=log.gpu,
        arguments={**log.results.arguments, **log.arguments},
        lines={name: line for name, (_, line) in said.items() if name != "total_steps"},
    )
    open_ones = [name for name in ("gpus", "global_batch", "seq_len") if getattr(setting, name) is None]
    return replace(setting, sequences=given.sequences, **{name: getattr(given, name) for name in open_ones})


def lines_of(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield (number, text, whole) of every line of a file, unpacked where its name ends in .gz. A progress bar draws
    over itself after carriage returns: each drawing is a line of the same number. `whole` is False for a last line
    that does not end, as of a job that was killed."""
    size, done = max(path.stat().st_size, 1), 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        number, rest = 1, b""
        while block := file.read(BLOCK):
            done += len(block)
            tell(done / size)
            *ended, rest = (rest + block).split(b"\n")
            for line in ended:
                yield from _drawings(number, line, whole=True)
                number += 1
            if len(rest) > LONGEST:
                before, _, rest = rest.rpartition(b"\r")
                yield from _drawings(number, before, whole=True)
                rest = rest[:LONGEST]
        if rest:
            yield from _drawings(number, rest, whole=False)


def _drawings(number: int, line: bytes, *, whole: bool) -> Iterator[tuple[int, str, bool]]:
    if b"\r" not in line:
        yield number, line[:LONGEST].decode("utf-8", "replace"), whole
        return
    parts = [part for part in line.split(b"\r") if part]
    for part in parts:
        yield number, part[:LONGEST].decode("utf-8", "replace"), whole or part is not parts[-1]
