"""How a run ends: with a checkpoint, and what was measured collected from all ranks and compared with the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch.distributed as dist

from shardwright.files import write_atomically
from shardwright.plans.plan import Plan
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.worker import peak_memory_bytes
from shardwright.runtime.step.engine import DTYPES, Engine
from shardwright.runtime.storage.checkpoint import Course, open_checkpoint, save_checkpoint
from shardwright.runtime.storage.weights import save_weights, write_index
from shardwright.runtime.timing.layer_profile import Measured, medians, profile_document
from shardwright.runtime.timing.stopwatch import StageTime, Stopwatch
from shardwright.runtime.timing.summary import RankSummary, summary_document

FINISHED, STOPPED = "finished", "stopped"
STATUS, STOP_REQUEST, METRICS = "status.json", "stop-request", "metrics.csv"


@dataclass(slots=True, kw_only=True)
class Record:
    """What a rank measured on the way, an entry a step; the stopwatch has the steps measured unit by unit."""

    stopwatch: Stopwatch
    step_seconds: list[float] = field(default_factory=list)
    stages: list[StageTime] = field(default_factory=list)
    update_seconds: list[float] = field(default_factory=list)


def course_of(plan: Plan, settings: Settings) -> Course:
    """Return what must be the same when a run goes on: it may have another plan, but not another course."""
    told = {
        "model": plan.model.name,
        "parameters": plan.model.parameters,
        "layers": len(plan.model.layers),
        "global_batch": plan.job.global_batch,
        "seq_len": plan.job.seq_len,
        "seed": settings.seed,
        "optimizer": settings.recipe.method,
    }
    return Course(settings=told, data={}, random={"seed": settings.seed})


def end_training(engine: Engine, settings: Settings, record: Record, done: int, *, stopped: bool) -> dict[str, Any]:
    """Write the last checkpoint and what else was asked for, and return the account of the run, also left as a file;
    what was measured is in that of rank 0 alone."""
    plan, rank = engine.layout.plan, engine.place.rank
    saved = save_checkpoint(engine, settings.out, done, course_of(plan, settings), settings.keep)
    if settings.save_weights is not None:
        _export(engine, settings, saved.folder)
    ranks = _gathered(engine, _own(engine, record))
    document: dict[str, Any] = {
        "state": STOPPED if stopped else FINISHED,
        "step": done,
        "checkpoint": str(saved.folder),
    }
    if rank == 0:
        if record.step_seconds:
            summaries = [RankSummary(**item["summary"]) for item in ranks]
            document |= summary_document(engine.layout, summaries, record.step_seconds)
        if settings.profile is not None and record.stopwatch.forward:
            measured = [_measured(item["measured"]) for item in ranks]
            text = json.dumps(profile_document(plan, measured), indent=1) + "\n"
            write_atomically(settings.profile, text)
        write_atomically(settings.out / STATUS, json.dumps(document, indent=1) + "\n")
    if engine.layout.world_size > 1:
        dist.barrier()
    return document


def _export(engine: Engine, settings: Settings, folder: Path) -> None:
    """Write Hugging Face weights from a checkpoint, each rank the files of some units."""
    assert settings.save_weights is not None, "only called where weights are asked for"
    model, rank, size = engine.layout.plan.model, engine.place.rank, engine.layout.world_size
    checkpoint, dtype = open_checkpoint(folder), DTYPES[settings.precision]
    units = range(rank, len(model.layers) + 2, size)
    save_weights(settings.save_weights, model, units, lambda p: checkpoint.whole_weight(p.name), dtype)
    if size > 1:
        dist.barrier()
    if rank == 0:
        write_index(settings.save_weights, model, dtype)


def _own(engine: Engine, record: Record) -> dict[str, Any]:
    stages = record.stages[1:] or record.stages
    summary = RankSummary(
        rank=engine.place.rank,
        busy_seconds=median([stage.busy_seconds for stage in stages] or [0.0]),
        waiting_seconds=median([stage.waiting_seconds for stage in stages] or [0.0]),
        span_seconds=median([stage.span_seconds for stage in stages] or [0.0]),
        peak_memory_bytes=peak_memory_bytes(engine.pipeline.device),
    )
    updated = max(sum(slot.stop - slot.start for slot in engine.slots), 1)
    measured = Measured(
        gpu=engine.place.gpu,
        tensor_parallel=engine.place.tensor_parallel,
        forward_seconds=medians(record.stopwatch.forward),
        backward_seconds=medians(record.stopwatch.backward),
        recomputed=_recomputed(engine),
        update_seconds_each=median(record.update_seconds or [0.0]) / updated,
    )
    return {"summary": asdict(summary), "measured": asdict(measured)}


def _measured(data: Mapping[str, Any]) -> Measured:
    return Measured(**data)


def _recomputed(engine: Engine) -> frozenset[int]:
    """Return the layers that run forward again before their backward pass."""
    recompute = engine.layout.plan.replicas[engine.place.replica].stages[engine.place.stage].recompute
    found: set[int] = set()
    for chunk in engine.place.chunks:
        layers = [unit for unit in chunk if 0 < unit < engine.layout.head]
        if recompute.granularity == "full":
            found.update(layers[: recompute.layers] if recompute.method == "block" else layers)
    return frozenset(found)


def _gathered(engine: Engine, own: dict[str, Any]) -> list[dict[str, Any]]:
    if engine.layout.world_size == 1:
        return [own]
    found: list[Any] = [None] * engine.layout.world_size
    dist.all_gather_object(found, own)
    return found
