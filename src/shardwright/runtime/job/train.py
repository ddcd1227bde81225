"""One process of a run from joining the others to an orderly end, whatever happens."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch.distributed as dist

from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.runtime.job import status
from shardwright.runtime.job.course import course_of
from shardwright.runtime.job.feed import Feed
from shardwright.runtime.job.finish import STOP_REQUEST
from shardwright.runtime.job.held_out import held_out
from shardwright.runtime.job.loop import Report, Run, run_steps
from shardwright.runtime.job.meeting import meet
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.start import begin_training, require_fresh
from shardwright.runtime.job.stop_request import StopRequest
from shardwright.runtime.job.watchdog import STARTING, Watch
from shardwright.runtime.job.worker import Worker, join
from shardwright.runtime.layout.groups import Layout, layout_of
from shardwright.runtime.step.rehearsal import rehearse
from shardwright.runtime.storage.mixture import open_mixture

MEETING_SECONDS = 5.0


def train(plan: Plan, settings: Settings, report: Report = lambda _row, _steps: None) -> dict[str, Any]:
    """Train on the processes that torchrun started, and return what was measured (all of it on rank 0).

    `report` is called on rank 0 after every step. A run that was asked to stop writes a checkpoint and returns with
    state "stopped"; what could not be written is listed under "unsaved". Raises SpecError for input that cannot be
    used, DivergedError on rank 0, and SystemExit with one of the statuses of `status` where another rank tells why.
    """
    require_fresh(settings)
    layout = layout_of(plan)
    worker = join(settings, layout)
    shared: Any = dist.distributed_c10d._get_default_store()
    store = shared.clone()
    watch = Watch(store, worker.rank, [place.name for place in layout.places], settings.patience_seconds)
    stopping = StopRequest(settings.out / STOP_REQUEST if worker.rank == 0 else None)
    try:
        run = _begun(layout, worker, settings, watch, stopping, report, shared)
        if settings.compiles:
            _compile(run, shared)
        document = run_steps(run)
    except SpecError as error:
        watch.stop()
        if not _speaks(store, layout.world_size):
            raise SystemExit(status.BAD_INPUT) from error
        raise
    except status.DivergedError as error:  # as all ranks find
        watch.stop()
        if worker.rank:
            raise SystemExit(status.DIVERGED) from error
        raise
    except RuntimeError as error:  # as torch.distributed reports a lost neighbour
        print(f"{layout.places[worker.rank].name} cannot go on: {error}", file=sys.stderr, flush=True)
        if watch.blame(stopping.asked) or stopping.asked():
            raise SystemExit(status.VERDICT) from error
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
) -> Run:
    plan = layout.plan
    samples = open_mixture(settings.data, plan.job.seq_len, settings.seed, plan.model.vocab, plan.job.global_batch)
    course = course_of(plan, settings, samples)
    start = begin_training(
        layout,
        worker,
        settings,
        course,
        partial(_warn, store, layout.places[worker.rank].name),
        samples.document_end() if settings.mask_documents else None,
    )
    return Run(
        start=start,
        settings=settings,
        course=course,
        feed=Feed(start.engine, samples, start.origin),
        held_out=held_out(start.engine, settings),
        watch=watch,
        stopping=stopping,
        report=report,
    )


def _compile(run: Run, store: Any) -> None:
    """Compile layers, and wait until all ranks have."""
    run.watch.note(f"{STARTING}, compiling layers")
    rehearse(run.engine, evaluates=run.held_out is not None)
    run.watch.note(f"{STARTING}, waiting for others that compile")
    meet(store, "compiled", run.engine.layout.world_size)


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
