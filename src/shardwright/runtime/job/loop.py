"""The steps of a run on one rank: train, note what was measured, save, and go on while that makes sense."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from shardwright.cost.compute.flops import job_flops
from shardwright.records import record
from shardwright.runtime.job import metrics
from shardwright.runtime.job.ending import DivergedError
from shardwright.runtime.job.feed import Feed, HeldOut
from shardwright.runtime.job.finish import Record, write_measurements
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.start import StartingPoint
from shardwright.runtime.job.watchdog import SAVING
from shardwright.runtime.job.worker import peak_memory_bytes
from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.step.engine import Engine, StepPhases, StepResult, train_step
from shardwright.runtime.step.pipeline import Event
from shardwright.runtime.storage.manifest import step_of
from shardwright.runtime.storage.steps import checkpoints
from shardwright.runtime.timing.layer_profile import Stopwatch, clock, stage_time
from shardwright.runtime.timing.step_trace import rank_document, spans, traced

WARM_UP_STEPS = 1


@record
class Run:
    """A rank of a run that has begun: what it trains, from where on which data, and on which others its loss is taken.

    A run of fixed ranks (`train`) and a generation of an elastic one differ in what hears of the
    steps: `begin` which one begins, counted from 1; `note` what the rank does; `stepped` each row; `save` after which
    step the state is there now, and whether it is the last. `stop` says whether the rank was asked to stop after this
    step. `phases` are those of the update, where ranks may be lost in it. A rank that `writes` writes what is measured.
    """

    start: StartingPoint
    settings: Settings
    feed: Feed
    held_out: HeldOut | None
    begin: Callable[[int], None]
    note: Callable[[str], None]
    stop: Callable[[], bool]
    stepped: Callable[[Record, metrics.Row], None]
    save: Callable[[Record, int, bool], None]
    writes: bool
    phases: StepPhases | None = None

    @property
    def engine(self) -> Engine:
        return self.start.engine


@record
class Trained:
    """How far a rank has come, whether that is because it was asked to stop, and what it measured."""

    done: int
    stopped: bool
    record: Record


def run_steps(run: Run) -> Trained:
    """Train to the last step, or until asked to stop. What cannot be written is said and counted, and training goes on.
    Raises DivergedError where step after step has no finite loss and gradients."""
    settings, engine, done, stopped = run.settings, run.engine, run.start.step, False
    record = Record(stopwatch=Stopwatch(now=clock(engine.pipeline.device)))
    while done < settings.steps and not stopped:
        number = done - run.start.step - WARM_UP_STEPS
        run.begin(done + 1)
        result = _step(run, done, record, number)
        done, stopped = done + 1, result.stop
        last = done == settings.steps or stopped
        row = metrics_row(engine, settings, result, done, record.step_seconds[-1])
        if run.held_out is not None and run.held_out.due(done, settings.steps):
            run.note("evaluating")
            loss = record.held_out_losses[done] = run.held_out.loss(engine, run.note)
            row = replace(row, held_out_loss=loss)
        run.stepped(record, row)
        if 0 <= number < settings.measured_steps and (last or number + 1 == settings.measured_steps):
            write_measurements(engine, settings, record, writes=run.writes)
        if engine.loss_scale.hopeless:
            raise DivergedError(_diverged(run, result, done))
        begin = time.perf_counter()
        run.save(record, done, last)
        record.saving_seconds.append(time.perf_counter() - begin)
    run.note(f"{SAVING} what is left at the end")
    engine.unsharding.arrive()
    return Trained(done=done, stopped=stopped, record=record)


def _step(run: Run, step: int, record: Record, number: int) -> StepResult:
    """Train a step, number `number` of those that may be measured, or traced under the profiler."""
    settings = run.settings
    if settings.trace is None or number != 0:
        return _plain_step(run, step, record, number)
    with traced(run.engine.pipeline.device) as trace:
        result = _plain_step(run, step, record, number)
    record.trace = rank_document(trace, spans(trace, record.events, result, record.data_seconds[-1]))
    return result


def _plain_step(run: Run, step: int, record: Record, number: int) -> StepResult:
    measured = run.settings.profile is not None and 0 <= number < run.settings.profile_steps
    events: list[Event] = []

    def take(event: Event) -> None:
        events.append(event)
        if measured:
            record.stopwatch.record(event)

    begin = time.perf_counter()
    batch = run.feed.batch(step)
    result = train_step(
        run.engine,
        batch,
        step,
        stop=run.stop,
        observe=record.stopwatch.observe if measured else None,
        record=take,
        note=run.note,
        phases=run.phases,
    )
    record.step_seconds.append(time.perf_counter() - begin)
    record.stages.append(stage_time(events))
    record.events = events
    record.data_seconds.append(run.feed.waited_seconds)
    record.sync_seconds.append(result.sync_seconds)
    record.update_seconds.append(result.update_seconds)
    return result


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
    flops = job_flops(plan.model, plan.job)
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
