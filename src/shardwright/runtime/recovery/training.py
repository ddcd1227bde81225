"""A rank's training in one generation, on a thread of its own, so that the worker hears its keeper whatever happens
(PyTorch).

Communication may never end. Where a connection breaks while a message is under way, gloo does not wake the operation
that waits for it: `Pair::signalException` of its TCP transport passes over sends in its queue and messages half
received, and they end with the time limit of the group. So a thread that does not end in time is left behind. The state
changes under a lock, and not at all once the generation is over: from then on it is the main thread's.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from shardwright.errors import SpecError
from shardwright.plans.document import from_document
from shardwright.runtime.job.held_out import HeldOut, held_out
from shardwright.runtime.job.loop import batch_of, metrics_row
from shardwright.runtime.job.metrics import Row
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.places import Place
from shardwright.runtime.recovery.channel import Message, RefusedError
from shardwright.runtime.recovery.link import KeeperLink, KeeperOrder
from shardwright.runtime.recovery.post import Post, begun
from shardwright.runtime.recovery.reporting import Tell, reporting
from shardwright.runtime.recovery.settlement import Report
from shardwright.runtime.step.engine import Engine, StepResult, Vote, run_passes, share_weights, take_vote
from shardwright.runtime.step.pipeline import Event
from shardwright.runtime.step.timestamps import seconds_between
from shardwright.runtime.storage.mixture import Mixture, open_mixture

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
        try:
            layout = layout_of(from_document(message["plan"]))
            model, job = layout.plan.model, layout.plan.job
            samples = open_mixture(settings.data, job.seq_len, settings.seed, model.vocab, job.global_batch)
            end = samples.document_end() if settings.mask_documents else None
            self.post = begun(link, self._order, layout, settings, end)
            self.post.untold = self._untold
            link.answer(self._order, ready=True)
            with reporting(link, message, self.post.engine, settings) as tell:
                _train(link, message, self.post, samples, settings, tell)
        except SpecError as error:
            link.answer(self._order, ready=False, why=str(error))
            link.tell("bad input here", reason=str(error))
        except RuntimeError as error:  # as torch.distributed reports a lost neighbour
            link.answer(self._order, ready=False, why=line_of(error))
            if not link.over(message["generation"]):
                link.tell("stuck here", reason=line_of(error), generation=message["generation"])
        except Exception:
            traceback.print_exc()
            os._exit(1)


def line_of(error: BaseException | Mapping[str, Any]) -> str:
    """Return the beginning of a message, without the place in torch's source that gloo puts before it."""
    first = str(error).strip().partition("\n")[0]
    text = first.partition("] ")[2] if first.startswith("[/") else first
    return text.partition(". ")[0]


def _train(
    link: KeeperLink, message: Message, post: Post, samples: Mixture, settings: Settings, tell: Tell | None
) -> None:
    """Train to the last step, or until all are asked to stop. A rank that records its machine's rows has `tell`."""
    generation, stopped = message["generation"], False
    evaluation = held_out(post.engine, settings)
    _tell_untold(post, evaluation, settings, tell)
    if post.report.step:
        _snapshot(link, post)  # what protected this step may have been lost with a machine
    paces: list[float] = []
    window = time.perf_counter()
    while post.report.step < settings.steps and not stopped:
        marks = [time.perf_counter()]
        post.row = None if tell is None else partial(_row, post.engine, settings, marks)
        vote, norm = _step(link, post, samples, paces, marks)
        done, stopped = post.report.step, vote.stop > 0.0
        if post.row is not None:
            post.untold = post.row(vote, norm, done)  # with the time that its weights took to the others
        _tell_row(post, evaluation, settings, tell)
        if len(paces) >= PACED_STEPS and time.perf_counter() - window >= PACED_SECONDS:
            work = _work_of(post.engine.place)
            link.tell("pace here", seconds=median(paces), work=work, generation=generation)
            paces.clear()
            window = time.perf_counter()
        if post.interval.due(done) and done < settings.steps and not stopped:
            _snapshot(link, post)
    _snapshot(link, post)
    link.tell("finished here", step=post.report.step, generation=generation, stopped=stopped)


def _tell_row(post: Post, evaluation: HeldOut | None, settings: Settings, tell: Tell | None) -> None:
    """Take the held-out loss where it is due, which all ranks do together, and tell the row of the last step."""
    loss = None
    if evaluation is not None and evaluation.due(post.report.step, settings.steps):
        loss = evaluation.loss(post.engine, post.note)
    if tell is not None and post.untold is not None:
        tell(replace(post.untold, held_out_loss=loss))
    post.untold = None


def _tell_untold(post: Post, evaluation: HeldOut | None, settings: Settings, tell: Tell | None) -> None:
    """Tell the row of the step at which this generation begins, where the one before was over before that was told, or
    before its held-out loss was there: some ranks may have told theirs."""
    if post.untold is not None and post.untold.step != post.report.step:
        post.untold = None  # of a step that was given up
    if evaluation is None or not evaluation.due(post.report.step, settings.steps):
        _tell_row(post, evaluation, settings, tell)
        return
    waiting = torch.full((1,), float(post.untold is not None), device=post.engine.pipeline.device)
    if post.engine.layout.world_size > 1:
        dist.all_reduce(waiting)
    if waiting.item():
        _tell_row(post, evaluation, settings, tell)


def _work_of(place: Place) -> str:
    """Return what a rank computes in a step, in words that are equal for equal work."""
    return f"{place.gpu}: units {place.chunks}, tp {place.tensor_parallel}, {place.micro_batches} micro-batches"


def _step(link: KeeperLink, post: Post, samples: Mixture, paces: list[float], marks: list[float]) -> tuple[Vote, float]:
    """Run a step in three parts: up to the gradient sums, the vote, and the update, which needs nobody else. Return its
    vote and the gradients' norm. The seconds that it computed go to `paces`, the times of its parts to `marks`."""
    engine, step = post.engine, post.report.step
    events: list[Event] = []

    post.note("beginning a step")
    loss = run_passes(engine, batch_of(engine, samples, step), note=post.note, record=events.append)
    marks.append(time.perf_counter())
    engine.sync.finish()
    with post.held():
        post.report = replace(post.report, voted=True)
    vote = take_vote(engine, step, loss, asked_to_stop=link.stopping.is_set())
    marks.append(time.perf_counter())
    paces.append(sum(seconds_between(event.began, event.ended) for event in events))
    with post.lock:
        post.report = replace(post.report, vote_step=step, vote=tuple(vote))
    post.interval.wait(step + 1)
    with post.held():
        norm = post.update(vote)
    share_weights(engine)
    return vote, norm


def _row(engine: Engine, settings: Settings, marks: list[float], vote: Vote, norm: float, done: int) -> Row:
    """Return the row of a step that began, had passed and had a vote at these `marks`, as far as it came."""
    now = time.perf_counter()
    begin, passed, summed = (*marks, now, now)[:3]
    result = StepResult(
        loss=vote.loss,
        gradient_norm=norm,
        stop=vote.stop > 0.0,
        pass_seconds=passed - begin,
        sync_seconds=summed - passed,
        update_seconds=now - summed,
    )
    return metrics_row(engine, settings, result, done, now - begin)


def _snapshot(link: KeeperLink, post: Post) -> None:
    """Hand the state over; a keeper that cannot take it says so itself, and training goes on."""
    try:
        with post.held():
            post.writer.write(post.report.step, post.engine.loss_scale)
            post.interval.hand(post.report.step, link.begin("protected", step=post.report.step))
    except (RefusedError, OSError) as error:
        link.tell("unprotected", step=post.report.step, reason=line_of(error))
