"""The training loop of one process: steps, metrics, checkpoints, and an orderly end whatever happens."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from shardwright.cost.compute.flops import iteration_flops
from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.runtime.job import metrics
from shardwright.runtime.job.finish import METRICS, STOP_REQUEST, Record, course_of, end_training
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.start import begin_training, require_fresh
from shardwright.runtime.job.stop_request import StopRequest
from shardwright.runtime.job.watchdog import VERDICT_STATUS, Watch
from shardwright.runtime.job.worker import Worker, join, peak_memory_bytes
from shardwright.runtime.layout.groups import Layout, layout_of
from shardwright.runtime.step.engine import Engine, StepResult, train_step
from shardwright.runtime.step.pipeline import Batch, Event
from shardwright.runtime.storage.checkpoint import save_checkpoint
from shardwright.runtime.storage.data import Samples, make_samples, open_tokens
from shardwright.runtime.timing.stopwatch import Stopwatch, clock, stage_time

WARM_UP_STEPS, BAD_INPUT = 1, 2
Report = Callable[[metrics.Row, int], None]


def train(plan: Plan, settings: Settings, report: Report = lambda _row, _steps: None) -> dict[str, Any]:
    """Train on the processes that torchrun started, and return what was measured (all of it on rank 0).

    `report` is called on rank 0 after every step. A run that was asked to stop writes a checkpoint and returns with
    state "stopped". Raises SpecError for input that cannot be used, before anything is trained.
    """
    require_fresh(settings)
    layout = layout_of(plan)
    worker = join(settings, layout.world_size)
    shared: Any = dist.distributed_c10d._get_default_store()
    store = shared.clone()
    watch = Watch(store, worker.rank, [place.name for place in layout.places], settings.patience_seconds)
    stopping = StopRequest(settings.out / STOP_REQUEST if worker.rank == 0 else None)
    try:
        document = _trained(layout, worker, settings, watch, stopping, report)
    except SpecError as error:
        watch.stop()
        if store.add("bad input", 1) > 1:  # another rank says it
            raise SystemExit(BAD_INPUT) from error
        raise
    except RuntimeError as error:  # as torch.distributed reports a lost neighbour
        print(f"{layout.places[worker.rank].name} cannot go on: {error}", file=sys.stderr, flush=True)
        if watch.blame(stopping.asked) or stopping.asked():
            raise SystemExit(VERDICT_STATUS) from error
        raise
    watch.stop()
    dist.destroy_process_group()
    return document


def batch_of(engine: Engine, samples: Samples, step: int) -> Batch:
    """Return the micro-batches of this rank's copy in a step: its part of the samples of the global batch."""
    plan, place, device = engine.layout.plan, engine.place, engine.pipeline.device

    def batch(micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = step * plan.job.global_batch + place.first_sample + micro_batch * plan.micro_batch
        rows = torch.from_numpy(samples.rows(first, plan.micro_batch)).to(device)
        return rows[:, :-1], rows[:, 1:]

    return batch


def _trained(
    layout: Layout, worker: Worker, settings: Settings, watch: Watch, stopping: StopRequest, report: Report
) -> dict[str, Any]:
    plan = layout.plan
    samples = make_samples(open_tokens(settings.data), plan.job.seq_len, settings.seed, plan.model.vocab)
    engine, first = begin_training(layout, worker, settings)
    if worker.rank == 0:
        metrics.begin(settings.out / METRICS, first + 1)
    record = Record(stopwatch=Stopwatch(now=clock(worker.device)))
    done, stopped = first, False
    while done < settings.steps and not stopped:
        number = done - first - WARM_UP_STEPS
        measured = settings.profile is not None and 0 <= number < settings.profile_steps
        result = _step(engine, samples, done, watch, record, stopping, measured=measured)
        done, stopped = done + 1, result.stop
        if worker.rank == 0:
            row = _row(engine, settings, result, done, record.step_seconds[-1])
            metrics.append(settings.out / METRICS, row)
            report(row, settings.steps)
        if (
            settings.checkpoint_every
            and done % settings.checkpoint_every == 0
            and done < settings.steps
            and not stopped
        ):
            watch.note("waiting for a checkpoint")
            save_checkpoint(engine, settings.out, done, course_of(plan, settings), settings.keep)
    watch.note("waiting for the end")
    return end_training(engine, settings, record, done, stopped=stopped)


def _step(
    engine: Engine,
    samples: Samples,
    step: int,
    watch: Watch,
    record: Record,
    stopping: StopRequest,
    *,
    measured: bool,
) -> StepResult:
    events: list[Event] = []

    def take(event: Event) -> None:
        events.append(event)
        if measured:
            record.stopwatch.record(event)

    begin = time.perf_counter()
    result = train_step(
        engine,
        batch_of(engine, samples, step),
        step,
        stop=stopping.asked,
        observe=record.stopwatch.observe if measured else None,
        record=take,
        note=watch.note,
    )
    record.step_seconds.append(time.perf_counter() - begin)
    record.stages.append(stage_time(events))
    record.update_seconds.append(result.update_seconds)
    return result


def _row(engine: Engine, settings: Settings, result: StepResult, done: int, seconds: float) -> metrics.Row:
    plan = engine.layout.plan
    peak = _peak_flops(engine.layout, settings.precision)
    flops = iteration_flops(plan.model, plan.job.global_batch, plan.job.seq_len)
    return metrics.Row(
        step=done,
        loss=result.loss,
        gradient_norm=result.gradient_norm,
        learning_rate=settings.recipe.rate(done - 1),
        seconds=seconds,
        tokens_per_second=plan.job.tokens_per_iteration / seconds,
        mfu=flops / (seconds * peak) if peak else None,
        pass_seconds=result.pass_seconds,
        sync_seconds=result.sync_seconds,
        update_seconds=result.update_seconds,
        peak_memory_bytes=peak_memory_bytes(engine.pipeline.device),
    )


def _peak_flops(layout: Layout, precision: str) -> float | None:
    """Return the peak of all devices of the plan together, None where that of one is not known."""
    gpus = {pool.gpu.name: pool.gpu for pool in layout.plan.cluster.pools}
    peaks = [gpus[place.gpu].peak(precision) for place in layout.places]
    return sum(peak for peak in peaks if peak) if all(peaks) else None
