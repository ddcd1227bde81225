"""How a run ends: with a checkpoint, and what was measured collected from all ranks and compared with the plan."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError

from shardwright.errors import SpecError
from shardwright.files import write_atomically
from shardwright.runtime.job import metrics
from shardwright.runtime.job.course import config_given
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.worker import peak_memory_bytes
from shardwright.runtime.step.engine import DTYPES, Engine
from shardwright.runtime.step.layered import run_again
from shardwright.runtime.step.pipeline import Event
from shardwright.runtime.storage.checkpoint import Saved, gathered, open_checkpoint, problems_of_all, save_checkpoint
from shardwright.runtime.storage.manifest import Course, checkpoints, step_folder
from shardwright.runtime.storage.weights import save_adapters, save_weights, write_config, write_index
from shardwright.runtime.timing.layer_profile import (
    Measured,
    StageTime,
    Stopwatch,
    medians,
    profile_document,
    trace_of_ranks,
)
from shardwright.runtime.timing.summary import RankSummary, summary_document
from shardwright.spec.model import Model

FINISHED, STOPPED = "finished", "stopped"
STATUS, STOP_REQUEST, METRICS = "status.json", "stop-request", metrics.FILE


@dataclass(slots=True, kw_only=True)
class Record:
    """What a rank measured on the way, an entry a step, and what could not be written; the stopwatch has the steps
    measured unit by unit, `events` are those of the last step, `trace` is that of the one that was traced. Held-out
    losses are by step."""

    stopwatch: Stopwatch
    step_seconds: list[float] = field(default_factory=list)
    stages: list[StageTime] = field(default_factory=list)
    data_seconds: list[float] = field(default_factory=list)
    sync_seconds: list[float] = field(default_factory=list)
    update_seconds: list[float] = field(default_factory=list)
    saving_seconds: list[float] = field(default_factory=list)
    unsaved: list[str] = field(default_factory=list)
    held_out_losses: dict[int, float] = field(default_factory=dict)
    metrics_lost: bool = False
    events: list[Event] = field(default_factory=list)
    trace: dict[str, Any] | None = None


def end_training(
    engine: Engine, settings: Settings, course: Course, record: Record, done: int, *, stopped: bool
) -> dict[str, Any]:
    """Write the last checkpoint, unless it is there and nothing was trained since, and what else was asked for, and
    return the account of the run, also left as a file; what was measured is in that of rank 0 alone, and what could not
    be written under "unsaved" in that of all."""
    saved = Saved(folder=step_folder(settings.out, done))
    if record.step_seconds or saved.folder not in checkpoints(settings.out):
        saved = save_checkpoint(engine, settings.out, done, course, settings.keep)
    if saved.problem:
        record.unsaved.append(f"checkpoint of step {done}: {saved.problem}")
    elif settings.save_weights is not None:
        record.unsaved += _exported(engine, settings, saved.folder)
    ranks = gathered(engine, asdict(_summary(engine, record)))
    document: dict[str, Any] = {"state": STOPPED if stopped else FINISHED, "step": done}
    if record.held_out_losses:
        step, loss = list(record.held_out_losses.items())[-1]
        document["held_out"] = {"step": step, "loss": loss}
    if engine.place.rank == 0 and record.step_seconds:
        summaries = [RankSummary(**item) for item in ranks]
        document |= summary_document(engine.layout, summaries, record.step_seconds, record.saving_seconds)
    there = checkpoints(settings.out) if saved.problem else [saved.folder]
    document |= {"checkpoint": str(there[-1]) if there else None, "unsaved": record.unsaved}
    if engine.place.rank == 0:
        record.unsaved += _written(settings.out / STATUS, json.dumps(document, indent=1) + "\n")
        for what in record.unsaved:
            print(f"error: not saved: {what}", file=sys.stderr, flush=True)
    if engine.layout.world_size > 1:
        dist.barrier(group=engine.groups.meeting)
    return document


def write_measurements(engine: Engine, settings: Settings, record: Record, *, writes: bool) -> None:
    """Write the layer profile and the trace of what was measured so far, on the ranks that do. All must call it."""
    report: dict[str, Any] = {"measured": asdict(_measured(engine, record)), "trace": record.trace}
    ranks = gathered(engine, report)
    if not writes:
        return
    if settings.profile is not None and record.stopwatch.forward:
        measured = [Measured(**item["measured"]) for item in ranks]
        text = json.dumps(profile_document(engine.layout.plan, measured), indent=1) + "\n"
        record.unsaved += _written(settings.profile, text)
    if settings.trace is not None and record.trace is not None:
        record.unsaved += _written(settings.trace, trace_of_ranks(engine.layout, [item["trace"] for item in ranks]))
    record.trace = None


def _written(path: Path, text: str) -> list[str]:
    """Write a file and return why it could not be, if so."""
    try:
        write_atomically(path, text)
    except SpecError as error:
        return [str(error)]
    return []


def _exported(engine: Engine, settings: Settings, folder: Path) -> list[str]:
    """Write Hugging Face weights from a checkpoint, each rank the files of some units, or the adapters, and return what
    went wrong."""
    assert settings.save_weights is not None, "only called where weights are asked for"
    model, rank, size = engine.layout.plan.model, engine.place.rank, engine.layout.world_size
    adapter, problem = engine.layout.plan.job.adapter, ""
    try:
        checkpoint, dtype = open_checkpoint(folder), DTYPES[settings.precision]
        units = range(rank, len(model.layers) + 2, size)
        if adapter is None:
            save_weights(settings.save_weights, model, units, lambda p: checkpoint.whole_weight(p.name), dtype)
        elif rank == 0:
            base = model.name if settings.weights is None else str(settings.weights)
            save_adapters(settings.save_weights, model, adapter, checkpoint.whole_weight, base)
        if adapter is None and rank == 0:
            write_index(settings.save_weights, model, dtype)
            _write_config(settings.save_weights, model, config_given(settings)[0], dtype)
    except (OSError, SafetensorError, SpecError) as error:
        problem = f"weights in {settings.save_weights}: {error}"
    problems = problems_of_all(engine, problem)
    return [problems] if problems else []


def _write_config(folder: Path, model: Model, given: dict[str, Any] | None, dtype: torch.dtype) -> None:
    """Write the config of weights; of a model that is no one's family they are saved without, and it is said."""
    try:
        write_config(folder, model, given, dtype)
    except SpecError as error:
        print(f"note: no config.json is beside the weights: {error}", file=sys.stderr, flush=True)


def _summary(engine: Engine, record: Record) -> RankSummary:
    stages = record.stages[1:] or record.stages
    busy = sorted(stage.busy_seconds for stage in stages)
    return RankSummary(
        rank=engine.place.rank,
        busy_seconds=median([stage.busy_seconds for stage in stages] or [0.0]),
        waiting_seconds=median([stage.waiting_seconds for stage in stages] or [0.0]),
        span_seconds=median([stage.span_seconds for stage in stages] or [0.0]),
        data_seconds=median(record.data_seconds[1:] or [0.0]),
        sync_seconds=median(record.sync_seconds[1:] or [0.0]),
        update_seconds=median(record.update_seconds[1:] or [0.0]),
        irregularity=busy[int(0.9 * (len(busy) - 1))] / median(busy) - 1.0 if busy and median(busy) else 0.0,
        peak_memory_bytes=peak_memory_bytes(engine.pipeline.device),
    )


def _measured(engine: Engine, record: Record) -> Measured:
    updated = max(sum(slot.stop - slot.start for slot in engine.slots), 1)
    return Measured(
        gpu=engine.place.gpu,
        tensor_parallel=engine.place.tensor_parallel,
        forward_seconds=medians(record.stopwatch.forward),
        backward_seconds=medians(record.stopwatch.backward),
        recomputed=_recomputed(engine),
        update_seconds_each=median(record.update_seconds or [0.0]) / updated,
    )


def _recomputed(engine: Engine) -> frozenset[int]:
    """Return the layers that run forward again before their backward pass."""
    recompute = engine.layout.plan.replicas[engine.place.replica].stages[engine.place.stage].recompute
    layers = [[unit for unit in chunk if 0 < unit < engine.layout.head] for chunk in engine.place.chunks]
    return frozenset().union(*(run_again(inside, recompute) for inside in layers))
