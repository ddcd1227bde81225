"""A worker: the process of one GPU, which outlives the generations that it trains in.

Its keeper gives it orders: `assign` a rank of a plan in a generation, `halt` when that is over, `settle` on a step with
the others, `end`. Between generations it keeps its process, and hands its state to the keeper if that is newer than the
last snapshot.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from shardwright.errors import SpecError
from shardwright.plans.document import from_document
from shardwright.runtime.job.loop import batch_of, metrics_row
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.start import details_for
from shardwright.runtime.layout.groups import Layout, layout_of
from shardwright.runtime.layout.places import Place
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.recovery import reform
from shardwright.runtime.recovery.channel import Message, RefusedError
from shardwright.runtime.recovery.generation_store import GenerationStore
from shardwright.runtime.recovery.handover import Writer, parts_of, take_back
from shardwright.runtime.recovery.link import Link, Order
from shardwright.runtime.recovery.rows import pieces_of
from shardwright.runtime.recovery.settlement import Report, Settlement
from shardwright.runtime.step.engine import (
    DTYPES,
    Engine,
    StepResult,
    Vote,
    apply_vote,
    make_engine,
    share_weights,
    take_vote,
)
from shardwright.runtime.step.pipeline import Event, run_step
from shardwright.runtime.step.timestamps import seconds_between
from shardwright.runtime.storage.holdings import parameter_shapes
from shardwright.runtime.storage.manifest import by_parameter
from shardwright.runtime.storage.mixture import Mixture, open_mixture
from shardwright.runtime.storage.piece_files import read_piece
from shardwright.runtime.storage.weights import open_weights

PACED_STEPS, PACED_SECONDS = 10, 10.0
"""The keeper hears of the median of the seconds computed in so many steps, taken over so many seconds or more: noise of
a second or two is no reason to form groups anew."""


class HaltedError(RuntimeError):
    """The generation is over."""


@dataclass(kw_only=True)
class Course:
    """Where a rank is in its generation: its engine, which has the state after `report.step` steps, and the writer of
    its snapshots. `torn` while it updates: a failure there leaves no state."""

    engine: Engine
    writer: Writer
    report: Report
    torn: bool = False


def work(host: str, port: int, token: int, settings: Settings) -> None:
    """Serve a keeper until it is done, or gone."""
    reform.environment()
    torch.set_num_threads(max(int(os.environ.get("OMP_NUM_THREADS", "1")), 1))
    link = Link(host, port, {"token": token, "process": os.getpid()})
    course: Course | None = None
    while True:
        order = link.orders.get()
        match order.message["op"]:
            case "assign":
                course = _assigned(link, order, settings)
            case "halt":
                link.answer(order, report=_reported(course))
            case "settle":
                _settled(link, order, course)
                course = None
                reform.tear_down()
            case "end":
                link.answer(order)
                return


def _assigned(link: Link, order: Order, settings: Settings) -> Course | None:
    """Train as a rank until the end, or until the generation is over; return what is left of it."""
    message = order.message
    course: Course | None = None
    try:
        layout = layout_of(from_document(message["plan"]))
        course = _begun(link, message, layout, settings)
        link.answer(order, ready=True)
        model, job = layout.plan.model, layout.plan.job
        samples = open_mixture(settings.data, job.seq_len, settings.seed, model.vocab, job.global_batch)
        _train(link, message, course, samples, settings)
    except SpecError as error:
        link.answer(order, ready=False)
        link.tell("bad input here", reason=str(error))
    except RuntimeError as error:  # as torch.distributed reports a lost neighbour
        link.answer(order, ready=False)
        if not link.over(message["generation"]):
            link.tell("stuck here", reason=_line(error), generation=message["generation"])
    except Exception:
        traceback.print_exc()
        os._exit(1)
    return course


def _begun(link: Link, message: Message, layout: Layout, settings: Settings) -> Course:
    """Return a rank that has joined the others and has its state."""
    rank, generation, seconds = message["rank"], message["generation"], message["operation_seconds"]
    device = _device(settings, message["slot"])
    if link.over(generation):
        raise HaltedError("the generation is over")
    link.open_store(message["store"], generation)
    sockets = reform.Sockets()
    link.interrupt = partial(reform.interrupt, sockets, device)
    store = GenerationStore(link.ask_store, seconds)
    groups = reform.form(layout, rank, store, device, seconds, sockets)
    resumed = message["step"] > 0
    engine = make_engine(
        layout,
        rank,
        groups,
        details=details_for(layout.plan.model, settings),
        recipe=settings.recipe,
        initial=None if resumed else _initial(layout, settings),
        dtype=DTYPES[settings.precision],
        device=device,
    )
    if resumed:
        _restored(engine, message)
    folder = Path(message["folder"])
    writer = Writer(link, folder, f"slot-{message['slot']}", generation, parts_of(engine, message["mates"]))
    return Course(engine=engine, writer=writer, report=Report(step=message["step"]))


def _initial(layout: Layout, settings: Settings) -> Any:
    model = layout.plan.model
    if settings.weights is not None:
        return partial(open_weights(settings.weights).whole, model)
    return seeded(model, settings.seed)


def _restored(engine: Engine, message: Message) -> None:
    """Have the state that the keeper gathered. Raises RuntimeError where it is not whole: a recovery begins anew."""
    pieces = pieces_of(message["pieces"])
    shapes = parameter_shapes(engine.layout)
    try:
        take_back(engine, by_parameter(pieces), shapes, partial(read_piece, Path("/")), message["scale"])
    except SpecError as error:
        raise RuntimeError(str(error)) from None


def _train(link: Link, message: Message, course: Course, samples: Mixture, settings: Settings) -> None:
    """Train to the last step, or until all are asked to stop."""
    every, generation, stopped = message["snapshot_every"], message["generation"], False

    def note(_doing: str) -> None:
        if link.over(generation):
            raise HaltedError("the generation is over")

    paces: list[float] = []
    window = time.perf_counter()
    while course.report.step < settings.steps and not stopped:
        begin = time.perf_counter()
        result = _step(link, course, samples, note, paces)
        done, stopped = course.report.step, result.stop
        if not message["mates"]:
            row = metrics_row(course.engine, settings, result, done, time.perf_counter() - begin)
            link.tell("row", row=asdict(row))
        if len(paces) >= PACED_STEPS and time.perf_counter() - window >= PACED_SECONDS:
            work = _work_of(course.engine.place)
            link.tell("pace here", seconds=median(paces), work=work, generation=generation)
            paces.clear()
            window = time.perf_counter()
        if every and done % every == 0 and done < settings.steps and not stopped:
            _snapshot(link, course)
    _snapshot(link, course)
    link.tell("finished here", step=course.report.step, generation=generation, stopped=stopped)


def _work_of(place: Place) -> str:
    """Return what a rank computes in a step, in words that are equal for equal work."""
    return f"{place.gpu}: units {place.chunks}, tp {place.tensor_parallel}, {place.micro_batches} micro-batches"


def _step(link: Link, course: Course, samples: Mixture, note: Callable[[str], None], paces: list[float]) -> StepResult:
    """Run a step in three parts: up to the gradient sums, the vote, and the update, which needs nobody else. The
    seconds that it computed go to `paces`."""
    engine, step = course.engine, course.report.step
    events: list[Event] = []
    note("beginning a step")
    begin = time.perf_counter()
    scale = engine.loss_scale.value
    loss = run_step(
        engine.pipeline, batch_of(engine, samples, step), engine.sync, loss_scale=scale, note=note, record=events.append
    )
    engine.passage.release()
    passed = time.perf_counter()
    engine.sync.finish()
    course.report = replace(course.report, voted=True)
    vote = take_vote(engine, loss, asked_to_stop=link.stopping.is_set())
    course.report = replace(course.report, vote_step=step, vote=tuple(vote))
    summed = time.perf_counter()
    paces.append(sum(seconds_between(event.began, event.ended) for event in events))
    norm = _update(course, vote)
    share_weights(engine)
    return StepResult(
        loss=vote.loss,
        gradient_norm=norm,
        stop=vote.stop > 0.0,
        pass_seconds=passed - begin,
        sync_seconds=summed - passed,
        update_seconds=time.perf_counter() - summed,
    )


def _update(course: Course, vote: Vote) -> float:
    """Update this rank's part of the state by the outcome of a vote, and return the gradients' norm."""
    step = course.report.step
    course.torn = True
    norm = apply_vote(course.engine, step, vote)
    course.report = replace(course.report, step=step + 1, voted=False)
    course.torn = False
    return norm


def _snapshot(link: Link, course: Course) -> None:
    """Hand the state over; a keeper that cannot take it says so itself, and training goes on."""
    try:
        course.writer.write(course.report.step, course.engine.loss_scale)
    except (RefusedError, OSError) as error:
        link.tell("unprotected", step=course.report.step, reason=_line(error))


def _reported(course: Course | None) -> dict[str, Any]:
    report = Report(step=-1) if course is None or course.torn else course.report
    return asdict(report)


def _settled(link: Link, order: Order, course: Course | None) -> None:
    """Reach the step that all survivors agreed on, and hand over the state if the keeper wants it."""
    message = order.message
    settlement = Settlement(step=message["step"], vote=message["vote"] and tuple(message["vote"]))
    if course is None or course.torn:
        link.answer(order, kept=False)
        return
    try:
        if course.report.step == settlement.step - 1 and settlement.vote is not None:
            _update(course, Vote(*settlement.vote))
        kept = course.report.step == settlement.step
        if kept and message["hand_over"]:
            writer = course.writer.of(parts_of(course.engine, message["mates"]))
            writer.write(course.report.step, course.engine.loss_scale, wait=True)
        link.answer(order, kept=kept)
    except (RuntimeError, OSError, SpecError) as error:
        print(f"the state could not be handed over: {_line(error)}", file=sys.stderr, flush=True)
        link.answer(order, kept=False)


def _device(settings: Settings, slot: int) -> torch.device:
    if settings.device != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", slot)
    torch.cuda.set_device(device)
    return device


def _line(error: BaseException | Mapping[str, Any]) -> str:
    """Return the beginning of a message, without the place in torch's source that gloo puts before it."""
    first = str(error).strip().partition("\n")[0]
    text = first.partition("] ")[2] if first.startswith("[/") else first
    return text.partition(". ")[0]
