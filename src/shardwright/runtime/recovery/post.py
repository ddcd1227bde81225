"""Where a rank is in its generation, from joining the others with its state (PyTorch)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from shardwright.errors import SpecError
from shardwright.runtime.job.course import course_of
from shardwright.runtime.job.inputs import samples_of
from shardwright.runtime.job.meeting import meet
from shardwright.runtime.job.metrics import Row
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.start import compile_layers, engine_of, resumed
from shardwright.runtime.job.worker import limit_of
from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.recovery import reform
from shardwright.runtime.recovery.channel import Message
from shardwright.runtime.recovery.generation_store import GenerationStore
from shardwright.runtime.recovery.handover import Writer, parts_of, take_back
from shardwright.runtime.recovery.interval import Interval
from shardwright.runtime.recovery.link import KeeperLink, KeeperOrder, OutsideError
from shardwright.runtime.recovery.rows import pieces_of
from shardwright.runtime.recovery.settlement import Report
from shardwright.runtime.state.holdings import parameter_shapes
from shardwright.runtime.step.engine import Engine, StepResult, Vote, apply_vote
from shardwright.runtime.storage.manifest import by_parameter
from shardwright.runtime.storage.piece_files import read_piece


class HaltedError(OutsideError):
    """The generation is over."""


@dataclass(kw_only=True)
class Post:
    """Where a rank is in its generation: its engine, which has the state after `report.step` steps, and the writer of
    its snapshots, taken in an `interval`. `torn` while it updates: a failure there leaves no state. Where it records
    rows, `row` makes that of the step under way of its outcome, as far as its `marks` go; `untold` is that of its last
    step until it is told. It is what a step does in its phases (`engine.StepPhases`)."""

    engine: Engine
    writer: Writer
    report: Report
    interval: Interval
    over: Callable[[], bool]
    origin: int = 0
    torn: bool = False
    row: Callable[[StepResult, int, float], Row] | None = None
    untold: Row | None = None
    marks: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the state still. Raises HaltedError once the generation is over."""
        with self.lock:
            if self.over():
                raise HaltedError("the generation is over")
            yield

    def note(self, _doing: str) -> None:
        """Hear what the rank does. Raises HaltedError once the generation is over."""
        if self.over():
            raise HaltedError("the generation is over")

    def begin(self, _step: int) -> None:
        """Hear that a step begins."""
        self.marks = [time.perf_counter()]

    def voting(self) -> None:
        """Say that this rank has all its gradient sums: it can update by any outcome that it is told."""
        self.marks.append(time.perf_counter())
        with self.held():
            self.report = replace(self.report, voted=True)

    def commit(self, vote: Vote) -> float:
        """Update by the outcome that this rank has seen. Once the generation is over it has seen none: what NCCL
        returns of a vote that is aborted is no outcome, and must not become that of the others."""
        self.marks.append(time.perf_counter())
        with self.held():
            self.report = replace(self.report, vote_step=self.report.step, vote=tuple(vote))
        self.interval.wait(self.report.step + 1)
        with self.held():
            return self.update(vote)

    def update(self, vote: Vote) -> float:
        """Update this rank's part of the state by the outcome of a vote, and return the gradients' norm."""
        step, self.torn = self.report.step, True
        norm = apply_vote(self.engine, step, vote)
        self.report = replace(self.report, step=step + 1, voted=False)
        self.torn = False
        if self.row is not None:
            now = time.perf_counter()
            begin, passed, summed = (*self.marks, now, now, now)[:3]
            result = StepResult(
                loss=vote.loss,
                gradient_norm=norm,
                stop=vote.stop > 0.0,
                pass_seconds=passed - begin,
                sync_seconds=summed - passed,
                update_seconds=now - summed,
            )
            self.untold = self.row(result, step + 1, now - begin)
        return norm


def begun(link: KeeperLink, order: KeeperOrder, layout: Layout, settings: Settings) -> Post:
    """Return a rank that has joined the others and has its state. The order that assigns it is answered where they do
    not find together."""
    message = order.message
    rank, generation, step = message["rank"], message["generation"], message["step"]
    device = _device(settings, message["slot"])
    if link.over(generation):
        raise HaltedError("the generation is over")
    link.open_store(message["store"], generation)
    sockets = reform.Sockets()
    link.interrupt = partial(reform.interrupt, sockets, device)
    limit = limit_of(settings)
    store = GenerationStore(link.ask_store, limit.total_seconds())
    late = partial(link.answer, order, ready=False, why=f"its groups are not there after {reform.FORMING_SECONDS:g} s")
    groups = reform.form(layout, rank, store, device, limit, sockets, late)
    kept, origin = message["kept"], message["origin"]
    say = partial(print, "warning:", file=sys.stderr, flush=True)
    engine = engine_of(layout, rank, groups, device, settings, say, fresh=not kept and settings.resume is None)
    if kept:
        _restored(engine, message)
    elif settings.resume is not None:
        start = resumed(engine, settings, course_of(layout.plan, settings, samples_of(layout.plan, settings)))
        step, origin = start.step, start.origin
    compile_layers(engine, settings, lambda _doing: None, partial(meet, store, "compiled", layout.world_size))
    folder, every = Path(message["folder"]), message["snapshot_every"]
    writer = Writer(link, folder, f"slot-{message['slot']}", generation, parts_of(engine, message["mates"]))
    interval = Interval(every=every, protected=step - every if kept else step, also_every=settings.checkpoint_every)
    over = partial(link.over, generation)
    report = Report(step=step)
    return Post(engine=engine, writer=writer, report=report, interval=interval, over=over, origin=origin)


def _restored(engine: Engine, message: Message) -> None:
    """Have the state that the keeper gathered. Raises OutsideError where it is not whole: a recovery begins anew."""
    pieces = pieces_of(message["pieces"])
    shapes = parameter_shapes(engine.layout)
    try:
        take_back(engine, by_parameter(pieces), shapes, partial(read_piece, Path("/")), message["scale"])
    except SpecError as error:
        raise OutsideError(str(error)) from None


def _device(settings: Settings, slot: int) -> torch.device:
    if settings.device != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", slot)
    torch.cuda.set_device(device)
    return device
