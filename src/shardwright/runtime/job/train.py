"""One process of a run from joining the others to an orderly end, whatever happens."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist

from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.runtime.job import ending, metrics
from shardwright.runtime.job.course import course_of, require_fresh, samples_of
from shardwright.runtime.job.ending import StopRequest
from shardwright.runtime.job.feed import Feed, held_out
from shardwright.runtime.job.finish import METRICS, STOP_REQUEST, Record, end_training
from shardwright.runtime.job.loop import Run, StartingPoint, begin_training, compile_layers, run_steps
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.watchdog import SAVING, Watch, fault_of, lost_others
from shardwright.runtime.job.worker import Worker, join, meet
from shardwright.runtime.layout.groups import Layout, layout_of
from shardwright.runtime.storage.checkpoint import prune, save_checkpoint
from shardwright.runtime.storage.manifest import Course

Report = Callable[[metrics.Row, int], None]
MEETING_SECONDS = 5.0


def train(plan: Plan, settings: Settings, report: Report = lambda _row, _steps: None) -> dict[str, Any]:
    """Train on the processes that torchrun started, and return what was measured (all of it on rank 0).

    `report` is called on rank 0 after every step. A run that was asked to stop writes a checkpoint and returns with
    state "stopped"; what could not be written is listed under "unsaved". Raises SpecError for input that cannot be
    used, DivergedError on rank 0, and SystemExit with one of the statuses of `ending` where another rank tells why.
    """
    require_fresh(settings)
    layout = layout_of(plan)
    worker = join(settings, layout)
    shared: Any = dist.distributed_c10d._get_default_store()
    store = shared.clone()
    watch = Watch(store, worker.rank, [place.name for place in layout.places], settings.patience_seconds)
    stopping = StopRequest(settings.out / STOP_REQUEST if worker.rank == 0 else None)
    try:
        run, course = _begun(layout, worker, settings, watch, stopping, report, shared)
        compile_layers(run.engine, settings, watch.note, partial(meet, shared, "compiled", layout.world_size))
        trained = run_steps(run)
        course = run.start.course_at(course, trained.done)
        document = end_training(run.engine, settings, course, trained.record, trained.done, stopped=trained.stopped)
    except SpecError as error:
        watch.stop()
        if not _speaks(store, layout.world_size):
            raise SystemExit(ending.BAD_INPUT) from error
        raise
    except ending.DivergedError as error:  # as all ranks find
        watch.stop()
        if worker.rank:
            raise SystemExit(ending.DIVERGED) from error
        raise
    except Exception as error:
        if not lost_others(error):
            traceback.print_exc()
            watch.accuse(fault_of(error))
            raise SystemExit(ending.VERDICT) from None
        print(f"{layout.places[worker.rank].name} cannot go on: {error}", file=sys.stderr, flush=True)
        if watch.blame(stopping.asked) or stopping.asked():
            raise SystemExit(ending.VERDICT) from error
        raise
    watch.stop()
    dist.destroy_process_group()
    return document


def _begun(
    layout: Layout,
    worker: Worker,
    settings: Settings,
    watch: Watch,
    stopping: StopRequest,
    report: Report,
    store: Any,
) -> tuple[Run, Course]:
    """Return a rank that is about to train, and the course of its run."""
    samples = samples_of(layout.plan, settings)
    course = course_of(layout.plan, settings, samples)
    start = begin_training(layout, worker, settings, course, partial(_warn, store, layout.places[worker.rank].name))
    leads = worker.rank == 0
    if leads:
        metrics.begin(settings.out / METRICS, start.step + 1)
    run = Run(
        start=start,
        settings=settings,
        feed=Feed(start.engine, samples, start.origin),
        held_out=held_out(start.engine, settings),
        begin=watch.begin,
        note=watch.note,
        stop=stopping.asked,
        stepped=partial(_tell, settings, report) if leads else lambda _record, _row: None,
        save=partial(_save, start, settings, course, watch),
        writes=leads,
    )
    return run, course


def _tell(settings: Settings, report: Report, record: Record, row: metrics.Row) -> None:
    """Write and report a step. Metrics that could not be written once are not tried again: a row may be half there."""
    report(row, settings.steps)
    if record.metrics_lost:
        return
    try:
        metrics.append(settings.out / METRICS, row)
    except OSError as error:
        record.metrics_lost = True
        record.unsaved.append(f"{METRICS} from step {row.step} on: {error.strerror or error}")
        print(f"\nwarning: {METRICS} ends at step {row.step}, training goes on: {error}", file=sys.stderr, flush=True)


def _save(
    start: StartingPoint, settings: Settings, course: Course, watch: Watch, record: Record, done: int, last: bool
) -> None:
    """Write a checkpoint where one is due. The last one is written at the end, and none of a step that was left out."""
    engine = start.engine
    if engine.loss_scale.in_a_row:
        return
    leads = engine.place.rank == 0
    if leads and settings.keep == 1:
        prune(settings.out, 1)  # the newest weights have given a finite loss
    if last or not settings.checkpoint_every or done % settings.checkpoint_every:
        return
    watch.note(f"{SAVING} a checkpoint")
    saved = save_checkpoint(engine, settings.out, done, start.course_at(course, done), settings.keep)
    if saved.problem:
        record.unsaved.append(f"checkpoint of step {done}: {saved.problem}")
        if leads:
            message = f"step {done} is not saved, training goes on: {saved.problem}"
            print(f"\nwarning: {message}", file=sys.stderr, flush=True)


def _warn(store: Any, name: str, words: str) -> None:
    """Warn of what may happen on several ranks: the first one speaks."""
    if store.add("warnings", 1) == 1:
        print(f"warning: {name}: {words}", file=sys.stderr, flush=True)


def _speaks(store: Any, ranks: int) -> bool:
    """Return whether this rank tells of bad input that several may have found: the first to say so. They leave
    together, as far as they come, so that the launcher cuts none of them off in the middle of a word or a call."""
    try:
        return meet(store, "bad input", ranks, MEETING_SECONDS) == 1
    except RuntimeError:  # the launcher has ended the store: another rank has spoken
        return False
