"""Where a rank is in its generation, from joining the others with its state (PyTorch)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from shardwright.errors import SpecError
from shardwright.runtime.job.metrics import Row
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.start import details_for
from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.recovery import reform
from shardwright.runtime.recovery.channel import Message
from shardwright.runtime.recovery.generation_store import GenerationStore
from shardwright.runtime.recovery.handover import Writer, parts_of, take_back
from shardwright.runtime.recovery.interval import Interval
from shardwright.runtime.recovery.link import KeeperLink, KeeperOrder
from shardwright.runtime.recovery.rows import pieces_of
from shardwright.runtime.recovery.settlement import Report
from shardwright.runtime.state.holdings import parameter_shapes
from shardwright.runtime.step.engine import Engine, Vote, apply_vote, make_engine
from shardwright.runtime.storage.manifest import by_parameter
from shardwright.runtime.storage.piece_files import read_piece
from shardwright.runtime.storage.weights import open_weights


class HaltedError(RuntimeError):
    """The generation is over."""


@dataclass(kw_only=True)
class Post:
    """Where a rank is in its generation: its engine, which has the state after `report.step` steps, and the writer of
    its snapshots, taken in an `interval`. `torn` while it updates: a failure there leaves no state. Where it records
    rows, `row` makes that of the step under way of its vote, the gradients' norm and its number; `untold` is that of
    its last step until it is told."""

    engine: Engine
    writer: Writer
    report: Report
    interval: Interval
    over: Callable[[], bool]
    torn: bool = False
    row: Callable[[Vote, float, int], Row] | None = None
    untold: Row | None = None
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

    def update(self, vote: Vote) -> float:
        """Update this rank's part of the state by the outcome of a vote, and return the gradients' norm."""
        step, self.torn = self.report.step, True
        norm = apply_vote(self.engine, step, vote)
        self.report = replace(self.report, step=step + 1, voted=False)
        self.torn = False
        if self.row is not None:
            self.untold = self.row(vote, norm, step + 1)
        return norm


def begun(link: KeeperLink, order: KeeperOrder, layout: Layout, settings: Settings, end: int | None) -> Post:
    """Return a rank that has joined the others and has its state. The order that assigns it is answered where they do
    not find together."""
    message = order.message
    rank, generation, seconds = message["rank"], message["generation"], message["operation_seconds"]
    device = _device(settings, message["slot"])
    if link.over(generation):
        raise HaltedError("the generation is over")
    link.open_store(message["store"], generation)
    sockets = reform.Sockets()
    link.interrupt = partial(reform.interrupt, sockets, device)
    store = GenerationStore(link.ask_store, seconds)
    late = partial(link.answer, order, ready=False, why=f"its groups are not there after {reform.FORMING_SECONDS:g} s")
    groups = reform.form(layout, rank, store, device, seconds, sockets, late)
    resumed = message["step"] > 0
    engine = make_engine(
        layout,
        rank,
        groups,
        details=details_for(layout.plan.model, settings),
        recipe=settings.recipe,
        initial=None if resumed else _initial(layout, settings),
        precision=settings.precision,
        device=device,
        end=end,
    )
    if resumed:
        _restored(engine, message)
    folder = Path(message["folder"])
    writer = Writer(link, folder, f"slot-{message['slot']}", generation, parts_of(engine, message["mates"]))
    over = partial(link.over, generation)
    every, step = message["snapshot_every"], message["step"]
    interval = Interval(every=every, protected=step - every if resumed else 0)
    return Post(engine=engine, writer=writer, report=Report(step=step), interval=interval, over=over)


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


def _device(settings: Settings, slot: int) -> torch.device:
    if settings.device != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", slot)
    torch.cuda.set_device(device)
    return device
