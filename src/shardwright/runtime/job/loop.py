"""The steps of a run on one rank: train, note what was measured, save, and go on while that makes sense."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from shardwright.cost.compute.flops import iteration_flops
from shardwright.runtime.job import metrics
from shardwright.runtime.job.feed import Feed
from shardwright.runtime.job.finish import METRICS, Record, end_training
from shardwright.runtime.job.held_out import HeldOut
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.start import StartingPoint
from shardwright.runtime.job.status import DivergedError
from shardwright.runtime.job.stop_request import StopRequest
from shardwright.runtime.job.watchdog import SAVING, Watch
from shardwright.runtime.job.worker import peak_memory_bytes
from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.step.engine import Engine, StepResult, train_step
from shardwright.runtime.step.pipeline import Batch, Event
from shardwright.runtime.storage.checkpoint import prune, save_checkpoint
from shardwright.runtime.storage.manifest import Course, step_of
from shardwright.runtime.storage.mixture import Mixture
from shardwright.runtime.storage.steps import checkpoints
from shardwright.runtime.timing.step_trace import rank_document, spans, traced
from shardwright.runtime.timing.stopwatch import Stopwatch, clock, stage_time

WARM_UP_STEPS = 1
Report = Callable[[metrics.Row, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A rank of a run that has begun: what it trains, from where on which data, on which others its loss is taken, and
    whom it tells."""

    start: StartingPoint
    settings: Settings
    course: Course
    feed: Feed
    held_out: HeldOut | None
    watch: Watch
    stopping: StopRequest
    report: Report

    @property
    def engine(self) -> Engine:
        return self.start.engine

    @property
    def leads(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.engine.place.rank == 0


def run_steps(run: Run) -> dict[str, Any]:
    """Train to the last step, or until asked to stop, and return the account of the run (all of it on rank 0).

    What cannot be written is said and counted, and training goes on. Raises DivergedError where step after step has no
    finite loss and gradients.
    """
    settings, done, stopped = run.settings, run.start.step, False
    record = Record(stopwatch=Stopwatch(now=clock(run.engine.pipeline.device)))
    if run.leads:
        metrics.begin(settings.out / METRICS, done + 1)
    while done < settings.steps and not stopped:
        number = done - run.start.step - WARM_UP_STEPS
        measured = settings.profile is not None and 0 <= number < settings.profile_steps
        run.watch.begin(done + 1)
        if settings.trace is not None and number == 0:
            result = _traced(run, done, record, measured=measured)
        else:
            result = _step(run, done, record, measured=measured)
        done, stopped = done + 1, result.stop
        if run.held_out is not None and run.held_out.due(done, settings.steps):
            run.watch.note("evaluating")
            record.held_out_losses[done] = run.held_out.loss(run.engine, run.watch.note)
        if run.leads:
            _tell(run, record, result, done)
        skipped = run.engine.loss_scale.in_a_row
        if run.engine.loss_scale.hopeless:
            raise DivergedError(_diverged(run, result, done))
        if run.leads and settings.keep == 1 and not skipped:
            prune(settings.out, 1)  # the newest weights have given a finite loss
        due = settings.checkpoint_every and done % settings.checkpoint_every == 0
        if due and done < settings.steps and not stopped and not skipped:
            _save(run, record, done)
    run.watch.note(f"{SAVING} what is left at the end")
    run.engine.unsharding.arrive()
    return end_training(run.engine, settings, run.start.course_at(run.course, done), record, done, stopped=stopped)


def batch_of(engine: Engine, samples: Mixture, step: int, origin: int = 0) -> Batch:
    """Return the micro-batches of this rank's copy in a step: its part of the samples of the global batch, which begins
    at sample `origin` + `step` batches."""
    plan, place, device = engine.layout.plan, engine.place, engine.pipeline.device

    def batch(micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, count = place.samples(micro_batch)
        rows = torch.from_numpy(samples.rows(origin + step * plan.job.global_batch + first, count)).to(device)
        return rows[:, :-1], rows[:, 1:]

    return batch


def _traced(run: Run, step: int, record: Record, *, measured: bool) -> StepResult:
    """Train a step under the profiler, and keep what it saw."""
    with traced(run.engine.pipeline.device) as trace:
        result = _step(run, step, record, measured=measured)
    record.trace = rank_document(trace, spans(trace, record.events, result))
    return result


def _step(run: Run, step: int, record: Record, *, measured: bool) -> StepResult:
    events: list[Event] = []

    def take(event: Event) -> None:
        events.append(event)
        if measured:
            record.stopwatch.record(event)

    begin = time.perf_counter()
    result = train_step(
        run.engine,
        run.feed.batch(step),
        step,
        stop=run.stopping.asked,
        observe=record.stopwatch.observe if measured else None,
        record=take,
        note=run.watch.note,
    )
    record.step_seconds.append(time.perf_counter() - begin)
    record.stages.append(stage_time(events))
    record.events = events
    record.update_seconds.append(result.update_seconds)
    return result


def _save(run: Run, record: Record, done: int) -> None:
    run.watch.note(f"{SAVING} a checkpoint")
    course = run.start.course_at(run.course, done)
    saved = save_checkpoint(run.engine, run.settings.out, done, course, run.settings.keep)
    if saved.problem:
        record.unsaved.append(f"checkpoint of step {done}: {saved.problem}")
        if run.leads:
            message = f"step {done} is not saved, training goes on: {saved.problem}"
            print(f"\nwarning: {message}", file=sys.stderr, flush=True)


def _tell(run: Run, record: Record, result: StepResult, done: int) -> None:
    """Write and report a step. Metrics that could not be written once are not tried again: a row may be half there."""
    row = metrics_row(run.engine, run.settings, result, done, record.step_seconds[-1])
    row = replace(row, held_out_loss=record.held_out_losses.get(done))
    run.report(row, run.settings.steps)
    if record.metrics_lost:
        return
    try:
        metrics.append(run.settings.out / METRICS, row)
    except OSError as error:
        record.metrics_lost = True
        record.unsaved.append(f"{METRICS} from step {done} on: {error.strerror or error}")
        print(f"\nwarning: {METRICS} ends at step {done}, training goes on: {error}", file=sys.stderr, flush=True)


def _diverged(run: Run, result: StepResult, done: int) -> str:
    """Return what happened and where to go on: at the last checkpoint whose weights have given a finite loss."""
    weights = done - run.engine.loss_scale.in_a_row
    good = [folder for folder in checkpoints(run.settings.out) if step_of(folder) < weights]
    what = f"steps {weights + 1} to {done} were left out (loss {result.loss:g}, gradient norm {result.gradient_norm:g})"
    where = f"go on with `resume={good[-1]}` and" if good else "start again with"
    return f"{what}: {where} a lower `learning_rate=`, or look at the data"


def metrics_row(engine: Engine, settings: Settings, result: StepResult, done: int, seconds: float) -> metrics.Row:
    plan = engine.layout.plan
    peak = _peak_flops(engine.layout, settings.precision)
    flops = iteration_flops(plan.model, plan.job.global_batch, plan.job.seq_len, plan.job.attended_tokens)
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
