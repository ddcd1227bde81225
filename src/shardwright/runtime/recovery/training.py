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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
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
from shardwright.runtime.recovery.settlement import Report
from shardwright.runtime.state.holdings import parameter_shapes
from shardwright.runtime.step.engine import (
    DTYPES,
    Engine,
    StepResult,
    Vote,
    apply_vote,
    make_engine,
    run_passes,
    share_weights,
    take_vote,
)
from shardwright.runtime.step.pipeline import Event
from shardwright.runtime.step.timestamps import seconds_between
from shardwright.runtime.storage.manifest import by_parameter
from shardwright.runtime.storage.mixture import Mixture, open_mixture
from shardwright.runtime.storage.piece_files import read_piece
from shardwright.runtime.storage.weights import open_weights

UNWIND_SECONDS = 1.0
"""So long a halted thread has for coming out of what it does."""
PACED_STEPS, PACED_SECONDS = 10, 10.0
"""The keeper hears of the median of the seconds computed in so many steps, taken over so many seconds or more: noise of
a second or two is no reason to form groups anew."""


class HaltedError(RuntimeError):
    """The generation is over."""


@dataclass(kw_only=True)
class Standing:
    """Where a rank is in its generation: its engine, which has the state after `report.step` steps, and the writer of
    its snapshots. `torn` while it updates: a failure there leaves no state."""

    engine: Engine
    writer: Writer
    report: Report
    over: Callable[[], bool]
    torn: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the state still. Raises HaltedError once the generation is over."""
        with self.lock:
            if self.over():
                raise HaltedError("the generation is over")
            yield

    def update(self, vote: Vote) -> float:
        """Update this rank's part of the state by the outcome of a vote, and return the gradients' norm."""
        step, self.torn = self.report.step, True
        norm = apply_vote(self.engine, step, vote)
        self.report = replace(self.report, step=step + 1, voted=False)
        self.torn = False
        return norm


class Training:
    """The thread, from the order that assigns a rank. `standing` is None until it has its state."""

    def __init__(self, link: Link, order: Order, settings: Settings) -> None:
        self.standing: Standing | None = None
        self._link, self._order, self._settings = link, order, settings
        self._halted = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)
        self._thread.start()

    def report(self) -> Report:
        """Return where the rank is, now that its generation is over."""
        self._halted = time.monotonic()
        standing = self.standing
        if standing is None:
            return Report(step=-1)
        with standing.lock:
            return Report(step=-1) if standing.torn else standing.report

    def stuck(self) -> bool:
        """Return whether the thread does not end, which makes this process of no more use."""
        self._thread.join(max(self._halted + UNWIND_SECONDS - time.monotonic(), 0.0))
        return self._thread.is_alive()

    def _run(self) -> None:
        link, message, settings = self._link, self._order.message, self._settings
        try:
            layout = layout_of(from_document(message["plan"]))
            self.standing = _begun(link, message, layout, settings)
            link.answer(self._order, ready=True)
            model, job = layout.plan.model, layout.plan.job
            samples = open_mixture(settings.data, job.seq_len, settings.seed, model.vocab, job.global_batch)
            _train(link, message, self.standing, samples, settings)
        except SpecError as error:
            link.answer(self._order, ready=False)
            link.tell("bad input here", reason=str(error))
        except RuntimeError as error:  # as torch.distributed reports a lost neighbour
            link.answer(self._order, ready=False)
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


def _device(settings: Settings, slot: int) -> torch.device:
    if settings.device != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", slot)
    torch.cuda.set_device(device)
    return device


def _begun(link: Link, message: Message, layout: Layout, settings: Settings) -> Standing:
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
    over = partial(link.over, generation)
    return Standing(engine=engine, writer=writer, report=Report(step=message["step"]), over=over)


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


def _train(link: Link, message: Message, standing: Standing, samples: Mixture, settings: Settings) -> None:
    """Train to the last step, or until all are asked to stop."""
    every, generation, stopped = message["snapshot_every"], message["generation"], False
    paces: list[float] = []
    window = time.perf_counter()
    while standing.report.step < settings.steps and not stopped:
        begin = time.perf_counter()
        result = _step(link, standing, samples, paces)
        done, stopped = standing.report.step, result.stop
        if not message["mates"]:
            row = metrics_row(standing.engine, settings, result, done, time.perf_counter() - begin)
            link.tell("row", row=asdict(row))
        if len(paces) >= PACED_STEPS and time.perf_counter() - window >= PACED_SECONDS:
            work = _work_of(standing.engine.place)
            link.tell("pace here", seconds=median(paces), work=work, generation=generation)
            paces.clear()
            window = time.perf_counter()
        if every and done % every == 0 and done < settings.steps and not stopped:
            _snapshot(link, standing)
    _snapshot(link, standing)
    link.tell("finished here", step=standing.report.step, generation=generation, stopped=stopped)


def _work_of(place: Place) -> str:
    """Return what a rank computes in a step, in words that are equal for equal work."""
    return f"{place.gpu}: units {place.chunks}, tp {place.tensor_parallel}, {place.micro_batches} micro-batches"


def _step(link: Link, standing: Standing, samples: Mixture, paces: list[float]) -> StepResult:
    """Run a step in three parts: up to the gradient sums, the vote, and the update, which needs nobody else. The
    seconds that it computed go to `paces`."""
    engine, step = standing.engine, standing.report.step
    events: list[Event] = []

    def note(_doing: str) -> None:
        if standing.over():
            raise HaltedError("the generation is over")

    note("beginning a step")
    begin = time.perf_counter()
    loss = run_passes(engine, batch_of(engine, samples, step), note=note, record=events.append)
    passed = time.perf_counter()
    engine.sync.finish()
    with standing.held():
        standing.report = replace(standing.report, voted=True)
    vote = take_vote(engine, loss, asked_to_stop=link.stopping.is_set())
    summed = time.perf_counter()
    paces.append(sum(seconds_between(event.began, event.ended) for event in events))
    with standing.lock:
        standing.report = replace(standing.report, vote_step=step, vote=tuple(vote))
    with standing.held():
        norm = standing.update(vote)
    share_weights(engine)
    return StepResult(
        loss=vote.loss,
        gradient_norm=norm,
        stop=vote.stop > 0.0,
        pass_seconds=passed - begin,
        sync_seconds=summed - passed,
        update_seconds=time.perf_counter() - summed,
    )


def _snapshot(link: Link, standing: Standing) -> None:
    """Hand the state over; a keeper that cannot take it says so itself, and training goes on."""
    try:
        with standing.held():
            standing.writer.write(standing.report.step, standing.engine.loss_scale)
    except (RefusedError, OSError) as error:
        link.tell("unprotected", step=standing.report.step, reason=line_of(error))
