"""A worker: the process of one GPU, which outlives the generations that it trains in (PyTorch).

Its keeper gives it orders: `assign` a rank of a plan in a generation, `halt` when that is over, `settle` on a step with
the others, `end`. The main thread takes them one by one and waits for nothing else, as training has a thread of its
own, which has until the next rank is assigned to come out of what it does. Between generations the process stays, and
hands its state to the keeper if that is newer than the last snapshot.

Training has that thread so that the worker hears its keeper whatever happens: communication may never end. Where a
connection breaks while a message is under way, gloo does not wake the operation that waits for it:
`Pair::signalException` of its TCP transport passes over sends in its queue and messages half received, and they end
with the time limit of the group. So a thread that does not end in time is left behind. The state changes under a lock,
and not at all once the generation is over: from then on it is the main thread's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from shardwright.errors import SpecError
from shardwright.plans.document import from_document
from shardwright.runtime.job.course import course_of, samples_of
from shardwright.runtime.job.ending import DivergedError
from shardwright.runtime.job.feed import Feed, HeldOut, held_out
from shardwright.runtime.job.finish import Record
from shardwright.runtime.job.loop import Run, StartingPoint, compile_layers, engine_of, metrics_row, resumed, run_steps
from shardwright.runtime.job.metrics import Row
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.watchdog import fault_of, lost_others
from shardwright.runtime.job.worker import limit_of, meet
from shardwright.runtime.layout.groups import Layout, Place, layout_of
from shardwright.runtime.recovery.run import Report, Settlement, reaches
from shardwright.runtime.recovery.state.inventory import pieces_of
from shardwright.runtime.recovery.wire import LostError, Message, RefusedError
from shardwright.runtime.recovery.worker import rendezvous
from shardwright.runtime.recovery.worker.link import KeeperLink, KeeperOrder, OutsideError, Tell, keep_log, reporting
from shardwright.runtime.recovery.worker.snapshot import Interval, Writer, parts_of, take_back
from shardwright.runtime.state.pieces import parameter_shapes
from shardwright.runtime.step.engine import Engine, StepResult, Vote, apply_vote
from shardwright.runtime.step.pipeline import Event, seconds_between
from shardwright.runtime.storage.manifest import by_parameter, read_piece

UNWIND_SECONDS = 1.0  # so long a halted thread has for coming out of what it does, and groups for being destroyed
# The keeper hears of the median of the seconds computed in so many steps, taken over so many seconds or more: noise of
# a second or two is no reason to form groups anew.
PACED_STEPS, PACED_SECONDS = 10, 10.0


class HaltedError(OutsideError):
    """The generation is over."""


@dataclass(kw_only=True)
class RankState:
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


def join_generation(link: KeeperLink, order: KeeperOrder, layout: Layout, settings: Settings) -> RankState:
    """Return a rank that has joined the others and has its state. The order that assigns it is answered where they do
    not find together."""
    message = order.message
    rank, generation, step = message["rank"], message["generation"], message["step"]
    device = _device(settings, message["slot"])
    if link.over(generation):
        raise HaltedError("the generation is over")
    link.open_store(message["store"], generation)
    sockets = rendezvous.Sockets()
    link.interrupt = partial(rendezvous.interrupt, sockets, device)
    limit = limit_of(settings)
    store = rendezvous.GenerationStore(link.ask_store, limit.total_seconds())
    late = partial(
        link.answer, order, ready=False, why=f"its groups are not there after {rendezvous.FORMING_SECONDS:g} s"
    )
    groups = rendezvous.form(layout, rank, store, device, limit, sockets, late)
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
    return RankState(engine=engine, writer=writer, report=report, interval=interval, over=over, origin=origin)


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


class Training:
    """The thread, from the order that assigns a rank. `state` is None until the rank has joined the others."""

    def __init__(self, link: KeeperLink, order: KeeperOrder, settings: Settings, untold: Row | None) -> None:
        self.state: RankState | None = None
        self._link, self._order, self._settings, self._untold = link, order, settings, untold
        self._halted = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)
        self._thread.start()

    @property
    def untold(self) -> Row | None:
        return self._untold if self.state is None else self.state.untold

    def report(self) -> Report:
        """Return where the rank is, now that its generation is over."""
        self._halted = time.monotonic()
        state = self.state
        if state is None:
            return Report(step=-1)
        with state.lock:
            return Report(step=-1) if state.torn else state.report

    def stuck(self) -> bool:
        """Return whether the thread does not end, which makes this process of no more use."""
        self._thread.join(max(self._halted + UNWIND_SECONDS - time.monotonic(), 0.0))
        return self._thread.is_alive()

    def _run(self) -> None:
        link, message, settings = self._link, self._order.message, self._settings
        generation = message["generation"]
        try:
            layout = layout_of(from_document(message["plan"]))
            self.state = join_generation(link, self._order, layout, settings)
            self.state.untold = self._untold
            link.answer(self._order, ready=True, step=self.state.report.step)
            with reporting(link, message, self.state.engine, settings) as tell:
                _train(link, message, self.state, settings, tell)
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


def _train(link: KeeperLink, message: Message, state: RankState, settings: Settings, tell: Tell | None) -> None:
    """Train to the last step, or until all are asked to stop. A rank that records its machine's rows has `tell`."""
    generation, engine = message["generation"], state.engine
    run = Run(
        start=StartingPoint(engine=engine, step=state.report.step, origin=state.origin),
        settings=settings,
        feed=Feed(engine, samples_of(engine.layout.plan, settings), state.origin),
        held_out=held_out(engine, settings),
        begin=state.begin,
        note=state.note,
        stop=link.stopping.is_set,
        stepped=partial(_stepped, state, tell, PaceWindow(link, generation, _work_of(engine.place))),
        save=partial(_save, link, state),
        writes=tell is not None,
        phases=state,
    )
    _tell_untold(state, run.held_out, settings, tell)
    if state.report.step:
        _snapshot(link, state)  # what protected this step may have been lost with a machine
    if tell is not None:
        state.row = partial(metrics_row, engine, settings)
    trained = run_steps(run)
    for what in trained.record.unsaved if run.writes else ():
        print(f"error: not saved: {what}", file=sys.stderr, flush=True)
    _snapshot(link, state)
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


def _stepped(state: RankState, tell: Tell | None, window: PaceWindow, record: Record, row: Row) -> None:
    window.add(record.events)
    if tell is not None:
        tell(row)
    state.untold = None


def _save(link: KeeperLink, state: RankState, _record: Record, done: int, last: bool) -> None:
    """Take a snapshot where one is due. That of the last step is taken at the end."""
    if state.interval.due(done) and not last:
        _snapshot(link, state)


def _tell_untold(state: RankState, evaluation: HeldOut | None, settings: Settings, tell: Tell | None) -> None:
    """Tell the row of the step at which this generation begins, where the one before was over before that was told, or
    before its held-out loss was there: some ranks may have told theirs."""
    step, row = state.report.step, state.untold
    if row is not None and row.step != step:
        row = None  # of a step that was given up
    if evaluation is not None and evaluation.due(step, settings.steps):
        waiting = torch.full((1,), float(row is not None), device=state.engine.pipeline.device)
        if state.engine.layout.world_size > 1:
            dist.all_reduce(waiting)
        if waiting.item():
            loss = evaluation.loss(state.engine, state.note)  # all ranks take part, those without a row too
            row = row and replace(row, held_out_loss=loss)
    if tell is not None and row is not None:
        tell(row)
    state.untold = None


def _work_of(place: Place) -> str:
    """Return what a rank computes in a step, in words that are equal for equal work."""
    return f"{place.gpu}: units {place.chunks}, tp {place.tensor_parallel}, {place.micro_batches} micro-batches"


def _snapshot(link: KeeperLink, state: RankState) -> None:
    """Hand the state over; a keeper that cannot take it says so itself, and training goes on."""
    try:
        with state.held():
            state.writer.write(state.report.step, state.engine.loss_scale)
            state.interval.hand(state.report.step, link.begin("protected", step=state.report.step))
    except (RefusedError, OSError) as error:
        link.tell("unprotected", step=state.report.step, reason=line_of(error))


def work(host: str, port: int, token: int, settings: Settings, secret: bytes) -> None:
    """Serve a keeper until it is done, or gone."""
    rendezvous.environment(host)
    torch.set_num_threads(max(int(os.environ.get("OMP_NUM_THREADS", "1")), 1))
    link = KeeperLink(host, port, {"token": token, "process": os.getpid()}, secret)
    training: Training | None = None
    while True:
        order = link.orders.get()
        match order.message["op"]:
            case "assign":
                if training is not None and training.stuck():
                    link.answer(order, stuck=True)  # which is this process's end
                    continue
                untold = None if training is None else training.untold  # until its end it may have told that
                training = None  # which has the groups
                if not rendezvous.torn_down(UNWIND_SECONDS):
                    link.answer(order, stuck=True)
                    continue
                message = order.message
                if message["logs"] is not None:
                    keep_log(Path(message["logs"]), message["generation"], message["rank"])
                training = Training(link, order, settings, untold)
            case "halt":
                report = Report(step=-1) if training is None else training.report()
                link.answer(order, report=asdict(report))
            case "settle":
                link.answer(order, kept=training is not None and _settled(training.state, order.message))
            case "end":
                link.answer(order)
                return


def _settled(state: RankState | None, message: Message) -> bool:
    """Reach the step that all survivors agreed on, hand over the state if the keeper wants it, and return whether this
    rank has it."""
    settlement = Settlement(step=message["step"], vote=message["vote"] and tuple(message["vote"]))
    if state is None or state.torn:
        return False
    try:
        with state.lock:
            if not reaches(state.report, settlement):
                return False
            if state.report.step < settlement.step and settlement.vote is not None:
                state.update(Vote(*settlement.vote))
            kept = state.report.step == settlement.step
            if kept and message["hand_over"]:
                writer = state.writer.of(parts_of(state.engine, message["mates"]))
                writer.write(state.report.step, state.engine.loss_scale, wait=True)
            return kept
    except (RuntimeError, OSError, SpecError) as error:
        print(f"the state could not be handed over: {line_of(error)}", file=sys.stderr, flush=True)
        return False
