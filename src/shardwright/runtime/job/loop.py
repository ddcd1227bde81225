"""The steps of a run on one rank: begin with new weights, those of a Hugging Face folder or the newest checkpoint that
all ranks find whole; then train, note what was measured, save, and go on while that makes sense."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from shardwright.cost.compute.flops import job_flops
from shardwright.errors import Problem, SpecError
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.runtime.job import metrics
from shardwright.runtime.job.course import details_for, origin_of, require_same_course, samples_of
from shardwright.runtime.job.ending import DivergedError
from shardwright.runtime.job.feed import Feed, HeldOut
from shardwright.runtime.job.finish import Record, write_measurements
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.watchdog import SAVING, STARTING
from shardwright.runtime.job.worker import Worker, peak_memory_bytes
from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.layout.process_groups import ProcessGroups, make_process_groups, with_meeting
from shardwright.runtime.model.blocks import compiled, layer_forward
from shardwright.runtime.model.initial import Initial, as_kept, beside, seeded
from shardwright.runtime.step.engine import Engine, StepPhases, StepResult, make_engine, run_each_kind, train_step
from shardwright.runtime.step.pipeline import Event
from shardwright.runtime.storage.checkpoint import Checkpoint, open_checkpoint, restore
from shardwright.runtime.storage.manifest import DAMAGED, GIVEN_UP, Course, checkpoints, resumable, set_aside, step_of
from shardwright.runtime.storage.weights import from_folder, open_adapters, open_weights
from shardwright.runtime.timing.layer_profile import Stopwatch, clock, rank_document, spans, stage_time, traced


@record
class StartingPoint:
    """Where a rank begins: its engine, the next step, and the sample that step 0 would begin with: not 0 where the
    global batch is another one than before."""

    engine: Engine
    step: int
    origin: int

    def course_at(self, course: Course, step: int) -> Course:
        """Return the course of a run before a step: with the samples that it has read."""
        samples = self.origin + step * self.engine.layout.plan.job.global_batch
        return replace(course, data={**course.data, "samples": samples})


def engine_of(
    layout: Layout,
    rank: int,
    groups: ProcessGroups,
    device: torch.device,
    settings: Settings,
    say: Callable[[str], None],
    *,
    fresh: bool,
) -> Engine:
    """Return the engine of a rank, with the weights that a run begins with if it is `fresh`, else to be set from what
    was kept, which frozen ones are not. `say` is told where layers cannot be compiled. Raises SpecError where weights
    do not fit, or the data do not say where documents end."""
    plan = layout.plan
    return make_engine(
        layout,
        rank,
        groups,
        details=details_for(plan.model, settings),
        recipe=settings.recipe,
        initial=initial_of(plan, settings) if fresh or plan.job.adapters else None,
        precision=settings.precision,
        device=device,
        layer=compiled(say) if settings.compiles else layer_forward,
        end=samples_of(plan, settings).document_end() if settings.mask_documents else None,
    )


def initial_of(plan: Plan, settings: Settings) -> Initial:
    """Return the weights that a run begins with, and adapters beside them. Raises SpecError where they do not fit."""
    model, adapter = plan.model, plan.job.adapter
    initial = seeded(model, settings.seed)
    if settings.weights is not None:
        initial = partial(open_weights(settings.weights).whole, model)
    if adapter is None:
        return initial
    frozen = as_kept(initial, adapter)
    if settings.adapters is not None:
        return from_folder(frozen, open_adapters(settings.adapters, adapter), model)
    return beside(frozen, settings.seed)


def begin_training(
    layout: Layout, worker: Worker, settings: Settings, course: Course, say: Callable[[str], None]
) -> StartingPoint:
    """Return where a rank begins. Raises as `engine_of` and `resumed`."""
    groups = with_meeting(make_process_groups(layout, worker.rank))
    fresh = settings.resume is None
    engine = engine_of(layout, worker.rank, groups, worker.device, settings, say, fresh=fresh)
    return StartingPoint(engine=engine, step=0, origin=0) if fresh else resumed(engine, settings, course)


def resumed(engine: Engine, settings: Settings, course: Course) -> StartingPoint:
    """Set an engine to the checkpoint that a run goes on from, and return where that is. Raises SpecError where none is
    whole, or it is of another course."""
    assert settings.resume is not None, "only called where there is one"
    checkpoint = resume(engine, settings, settings.resume, course)
    origin = origin_of(checkpoint.manifest, engine.layout.plan.job.global_batch)
    return StartingPoint(engine=engine, step=checkpoint.step, origin=origin)


def compile_layers(
    engine: Engine, settings: Settings, note: Callable[[str], None], meet_all: Callable[[], object]
) -> None:
    """Compile layers if the run does, and wait until all ranks have."""
    if settings.compiles:
        note(f"{STARTING}, compiling layers")
        run_each_kind(engine, evaluates=settings.held_out is not None)
        note(f"{STARTING}, waiting for others that compile")
        meet_all()


def resume(engine: Engine, settings: Settings, folder: Path, course: Course) -> Checkpoint:
    """Set an engine to the newest checkpoint in a folder (or to that which it is) that all ranks find whole, and return
    it. Newer ones that are damaged are named on standard error.

    Raises SpecError where none is whole, with what is wrong with each, or the course of one is another one.
    """
    damaged: dict[Path, str] = {}
    for step in resumable(folder):
        checkpoint, problem = _opened(step)
        if checkpoint is not None:
            require_same_course(
                checkpoint.manifest, engine.layout.plan, course, settings.accept_change, checkpoint.name
            )
        if not (problem := restore(engine, checkpoint, problem)):
            assert checkpoint is not None, "all ranks have read it"
            if engine.place.rank == 0:
                _give_up(damaged, checkpoint, settings)
            return checkpoint
        damaged[step] = problem
    raise SpecError(*(Problem("", problem) for problem in damaged.values()))


def _opened(folder: Path) -> tuple[Checkpoint | None, str]:
    try:
        return open_checkpoint(folder), ""
    except SpecError as error:
        return None, str(error)


def _give_up(damaged: Mapping[Path, str], resumed: Checkpoint, settings: Settings) -> None:
    """Say which checkpoints are damaged, and set those aside that lie in the folder of this run, and where it trains
    on, what it had come to after the step that it goes on from: that would be kept and resumed in place of new steps.
    Damaged ones are left until an older one is found whole: so it is them, and not the way to all of them."""
    for folder, problem in damaged.items():
        kept = _set_aside(folder, DAMAGED) if folder.parent.resolve() == settings.out.resolve() else ""
        print(f"warning: {folder} is damaged{kept}: {problem}", file=sys.stderr, flush=True)
    trains = resumed.step < settings.steps
    for folder in (path for path in checkpoints(settings.out) if trains and step_of(path) > resumed.step):
        print(f"warning: {folder} is given up{_set_aside(folder, GIVEN_UP)}", file=sys.stderr, flush=True)
    if damaged:
        print(f"warning: training goes on from {resumed.name}", file=sys.stderr, flush=True)


def _set_aside(folder: Path, suffix: str) -> str:
    try:
        return f" and is kept as {set_aside(folder, suffix).name}"
    except OSError as error:
        return f" and cannot be renamed ({error.strerror or error})"


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
    if run.settings.trace is None or number != 0:
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
    result = train_step(
        run.engine,
        run.feed.batch(step),
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
    return metrics.Row(
        step=done,
        loss=result.loss,
        gradient_norm=result.gradient_norm,
        learning_rate=settings.recipe.rate(done - 1),
        seconds=seconds,
        tokens_per_second=plan.job.tokens_per_iteration / seconds,
        mfu=job_flops(plan.model, plan.job) / (seconds * peak) if peak else None,
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
