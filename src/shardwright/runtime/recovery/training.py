"""A rank's training in one generation, on a thread of its own, so that the worker hears its keeper whatever happens
(PyTorch).

Communication may never end. Where a connection breaks while a message is under way, gloo does not wake the operation
that waits for it: `Pair::signalException` of its TCP transport passes over sends in its queue and messages half
received, and they end with the time limit of the group. So a thread that does not end in time is left behind. The state
changes under a lock, and not at all once the generation is over: from then on it is the main thread's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from shardwright.errors import SpecError
from shardwright.plans.document import from_document
from shardwright.runtime.job.faults import fault_of, lost_others
from shardwright.runtime.job.feed import Feed
from shardwright.runtime.job.finish import Record
from shardwright.runtime.job.held_out import HeldOut, held_out
from shardwright.runtime.job.inputs import samples_of
from shardwright.runtime.job.loop import Run, metrics_row, run_steps
from shardwright.runtime.job.metrics import Row
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.start import StartingPoint
from shardwright.runtime.job.status import DivergedError
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.places import Place
from shardwright.runtime.recovery.channel import LostError, Message, RefusedError
from shardwright.runtime.recovery.link import KeeperLink, KeeperOrder, OutsideError
from shardwright.runtime.recovery.post import Post, begun
from shardwright.runtime.recovery.reporting import Tell, reporting
from shardwright.runtime.recovery.settlement import Report
from shardwright.runtime.step.pipeline import Event
from shardwright.runtime.step.timestamps import seconds_between

UNWIND_SECONDS = 1.0
"""So long a halted thread has for coming out of what it does, and groups for being destroyed."""
PACED_STEPS, PACED_SECONDS = 10, 10.0
"""The keeper hears of the median of the seconds computed in so many steps, taken over so many seconds or more: noise of
a second or two is no reason to form groups anew."""


class Training:
    """The thread, from the order that assigns a rank. `post` is None until it has its state."""

    def __init__(self, link: KeeperLink, order: KeeperOrder, settings: Settings, untold: Row | None) -> None:
        self.post: Post | None = None
        self._link, self._order, self._settings, self._untold = link, order, settings, untold
        self._halted = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)
        self._thread.start()

    @property
    def untold(self) -> Row | None:
        """The row that is still to be told."""
        return self._untold if self.post is None else self.post.untold

    def report(self) -> Report:
        """Return where the rank is, now that its generation is over."""
        self._halted = time.monotonic()
        post = self.post
        if post is None:
            return Report(step=-1)
        with post.lock:
            return Report(step=-1) if post.torn else post.report

    def stuck(self) -> bool:
        """Return whether the thread does not end, which makes this process of no more use."""
        self._thread.join(max(self._halted + UNWIND_SECONDS - time.monotonic(), 0.0))
        return self._thread.is_alive()

    def _run(self) -> None:
        link, message, settings = self._link, self._order.message, self._settings
        generation = message["generation"]
        try:
            layout = layout_of(from_document(message["plan"]))
            self.post = begun(link, self._order, layout, settings)
            self.post.untold = self._untold
            link.answer(self._order, ready=True, step=self.post.report.step)
            with reporting(link, message, self.post.engine, settings) as tell:
                _train(link, message, self.post, settings, tell)
        except SpecError as error:
            self._failed("bad input here", str(error))
        except DivergedError as error:  # as all ranks find
            self._failed("failed here", f"training has diverged: {error}")
        except torch.AcceleratorError as error:  # this process can do nothing more with its GPU; a new one may
            print(f"rank {message['rank']}: {fault_of(error)}", file=sys.stderr, flush=True)
            os._exit(1)
        except Exception as error:
            if link.over(generation):
                return
            if lost_others(error) or isinstance(error, OutsideError | RefusedError | LostError):
                link.answer(self._order, ready=False, why=line_of(error))
                link.tell("stuck here", reason=line_of(error), generation=generation)
            else:
                traceback.print_exc()
                self._failed("failed here", f"rank {message['rank']} failed: {fault_of(error)}")

    def _failed(self, what: str, reason: str) -> None:
        """Say that no recovery helps: it would come to the same again, on all machines."""
        self._link.answer(self._order, ready=False, why=reason)
        self._link.tell(what, reason=reason)


def line_of(error: BaseException | Mapping[str, Any]) -> str:
    """Return the beginning of a message, without the place in torch's source that gloo puts before it."""
    first = str(error).strip().partition("\n")[0]
    text = first.partition("] ")[2] if first.startswith("[/") else first
    return text.partition(". ")[0]


def _train(link: KeeperLink, message: Message, post: Post, settings: Settings, tell: Tell | None) -> None:
    """Train to the last step, or until all are asked to stop. A rank that records its machine's rows has `tell`."""
    generation, engine = message["generation"], post.engine
    run = Run(
        start=StartingPoint(engine=engine, step=post.report.step, origin=post.origin),
        settings=settings,
        feed=Feed(engine, samples_of(engine.layout.plan, settings), post.origin),
        held_out=held_out(engine, settings),
        begin=post.begin,
        note=post.note,
        stop=link.stopping.is_set,
        stepped=partial(_stepped, post, tell, PaceWindow(link, generation, _work_of(engine.place))),
        save=partial(_save, link, post),
        writes=tell is not None,
        phases=post,
    )
    _tell_untold(post, run.held_out, settings, tell)
    if post.report.step:
        _snapshot(link, post)  # what protected this step may have been lost with a machine
    if tell is not None:
        post.row = partial(metrics_row, engine, settings)
    trained = run_steps(run)
    for what in trained.record.unsaved if run.writes else ():
        print(f"error: not saved: {what}", file=sys.stderr, flush=True)
    _snapshot(link, post)
    link.tell("finished here", step=trained.done, generation=generation, stopped=trained.stopped)


@dataclass(kw_only=False)
class PaceWindow:
    """The seconds that a rank computed in the steps since its keeper last heard of them, and its `work`."""

    link: KeeperLink
    generation: int
    work: str
    seconds: list[float] = field(default_factory=list)
    since: float = field(default_factory=time.perf_counter)

    def add(self, events: Sequence[Event]) -> None:
        """Note a step, and tell the keeper where that is due."""
        self.seconds.append(sum(seconds_between(event.began, event.ended) for event in events))
        if len(self.seconds) >= PACED_STEPS and time.perf_counter() - self.since >= PACED_SECONDS:
            pace = median(self.seconds)
            self.link.tell("pace here", seconds=pace, work=self.work, generation=self.generation)
            self.seconds.clear()
            self.since = time.perf_counter()


def _stepped(post: Post, tell: Tell | None, paces: PaceWindow, record: Record, row: Row) -> None:
    """Tell of a step."""
    paces.add(record.events)
    if tell is not None:
        tell(row)
    post.untold = None


def _save(link: KeeperLink, post: Post, _record: Record, done: int, last: bool) -> None:
    """Take a snapshot where one is due. That of the last step is taken at the end."""
    if post.interval.due(done) and not last:
        _snapshot(link, post)


def _tell_untold(post: Post, evaluation: HeldOut | None, settings: Settings, tell: Tell | None) -> None:
    """Tell the row of the step at which this generation begins, where the one before was over before that was told, or
    before its held-out loss was there: some ranks may have told theirs."""
    step, row = post.report.step, post.untold
    if row is not None and row.step != step:
        row = None  # of a step that was given up
    if evaluation is not None and evaluation.due(step, settings.steps):
        waiting = torch.full((1,), float(row is not None), device=post.engine.pipeline.device)
        if post.engine.layout.world_size > 1:
            dist.all_reduce(waiting)
        if waiting.item():
            loss = evaluation.loss(post.engine, post.note)
            row = row and replace(row, held_out_loss=loss)
    if tell is not None and row is not None:
        tell(row)
    post.untold = None


def _work_of(place: Place) -> str:
    """Return what a rank computes in a step, in words that are equal for equal work."""
    return f"{place.gpu}: units {place.chunks}, tp {place.tensor_parallel}, {place.micro_batches} micro-batches"


def _snapshot(link: KeeperLink, post: Post) -> None:
    """Hand the state over; a keeper that cannot take it says so itself, and training goes on."""
    try:
        with post.held():
            post.writer.write(post.report.step, post.engine.loss_scale)
            post.interval.hand(post.report.step, link.begin("protected", step=post.report.step))
    except (RefusedError, OSError) as error:
        link.tell("unprotected", step=post.report.step, reason=line_of(error))
