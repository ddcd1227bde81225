"""The coordinator of a generation, which is the keeper of its first machine, takes the run to the next one.

A recovery halts every machine, brings the survivors to one step, finds what survives, makes a plan for who is there,
moves what is needed and starts. Whoever is lost on the way begins it anew, with the next number. Nothing of it is kept
anywhere else: a successor asks the machines, and knows as much.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwright.plans.document import to_document
from shardwright.plans.plan import Plan
from shardwright.recovery.quorum import Generation, Machine, next_generation, quorum
from shardwright.recovery.transfer import CLOUD
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.recovery.channel import Channel, LostError, Message, RefusedError
from shardwright.runtime.recovery.course import Run
from shardwright.runtime.recovery.inventory import Held, State, cover, disagreements, held_of, newest_state
from shardwright.runtime.recovery.moves import bandwidths_of, orders_of
from shardwright.runtime.recovery.needs import fits, machine_needs, movement, seats
from shardwright.runtime.recovery.options import KeeperOptions
from shardwright.runtime.recovery.record import Recovery
from shardwright.runtime.recovery.rows import machine_data, machine_of, pieces_of
from shardwright.runtime.recovery.settlement import report_of, settle
from shardwright.runtime.recovery.tiers import Cloud
from shardwright.runtime.storage.manifest import Manifest

ATTEMPTS = 12
ENDED, GAVE_UP, BAD_INPUT = 0, 1, 2


class BeginAgainError(Exception):
    """A recovery must begin anew; the message says why."""


class WaitError(Exception):
    """Nothing is trained until there are more machines."""


class MinorityError(Exception):
    """Others may be going on without these machines."""


@dataclass(kw_only=True)
class Member:
    """A machine that has joined, and the connection to it."""

    machine: Machine
    channel: Channel


@dataclass(kw_only=True)
class Progress:
    """How far the ranks of a generation are: which machines have handed over which step, which GPUs have finished."""

    held: dict[int, set[str]] = field(default_factory=dict)
    finished: set[tuple[str, int]] = field(default_factory=set)
    uploaded: dict[int, dict[str, Any]] = field(default_factory=dict)
    ranks: int = 0


class Coordinator:
    """Coordinates from its creation until it is closed. `step_down` is called with the reason, and with an exit status
    where the whole run is over."""

    HEARS = frozenset(("held", "finished", "stuck", "bad input", "uploaded"))

    def __init__(
        self,
        options: KeeperOptions,
        run: Run,
        before: Generation,
        lost: set[tuple[str, int]],
        step_down: Callable[[str, int | None], None],
    ) -> None:
        self._options, self._run, self._before, self._plan = options, run, before, options.plan
        self._step_down, self.closed = step_down, False
        self._lost_addresses = set(lost)
        self._uploads: list[asyncio.Task[None]] = []
        self._cloud = Cloud(options.upload) if options.upload else None
        self._members: dict[str, Member] = {}
        self._current, self._highest = before, before.number
        self._progress = Progress()
        self._cause, self._noticed = "the run begins", time.monotonic()
        if before.machines:
            self._cause = f"{before.names[0]} is lost, which coordinated"
        self._event = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._lead())

    def join(self, channel: Channel, message: Message) -> Message:
        """Take a machine in, unless it is of another run."""
        machine = machine_of(message["machine"])
        if message["run"] != self._run.name:
            return {"refused": f"{machine.name} has another plan, seed or optimizer than this run"}
        theirs = Generation(number=message["number"], machines=tuple(machine_of(m) for m in message["members"]))
        if theirs.number > self._before.number and theirs.machines:
            self._before = theirs
        self._highest = max(self._highest, theirs.number)
        old = self._members.pop(machine.name, None)
        self._members[machine.name] = Member(machine=machine, channel=channel)
        if old is not None and old.channel is not channel:
            old.channel.close("it joined again")
        channel.on_lost = self._member_lost
        channel.watch(self._options.beat_seconds, self._options.silence_seconds)
        self._because(f"{machine.name} came")
        return {"taken": True}

    def hear(self, channel: Channel, message: Message) -> Message:
        """Take note of what a keeper says of its machine."""
        name = next((name for name, member in self._members.items() if member.channel is channel), "")
        if message["op"] == "bad input":
            self._give_up(f"error: {message['reason']}", BAD_INPUT)
        elif message.get("generation") != self._highest:
            return {}  # of a generation that is over
        elif message["op"] == "stuck":
            self._because(f"{name}: {message['reason']}")
        elif message["op"] == "uploaded":
            self._uploaded(name, message)
        elif message["op"] == "held":
            self._held(name, message["step"])
        elif message["op"] == "finished":
            self._progress.finished.add((name, message["slot"]))
            self._progress.held.setdefault(message["step"], set())
            self._event.set()
        return {}

    def close(self) -> None:
        """Coordinate no more."""
        self.closed = True
        self._task.cancel()

    def _member_lost(self, channel: Channel, reason: str) -> None:
        for name, member in list(self._members.items()):
            if member.channel is channel:
                del self._members[name]
                if not self.closed:
                    self._because(f"{name} is lost: {reason}")

    def _because(self, cause: str) -> None:
        if not self._cause:
            self._cause, self._noticed = cause, time.monotonic()
        self._event.set()

    def _held(self, name: str, step: int) -> None:
        machines = self._progress.held.setdefault(step, set())
        machines.add(name)
        if machines >= set(self._current.names):
            for old in [number for number in self._progress.held if number < step]:
                del self._progress.held[old]
            self._event.set()
            task = asyncio.get_running_loop().create_task(
                self._ask_all("commit", step=step, generation=self._current.number)
            )
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _uploaded(self, name: str, message: Message) -> None:
        """Note that a machine has put its part of a step into the object store; when all have, the step is one."""
        step = message["step"]
        parts = self._progress.uploaded.setdefault(step, {})
        parts[name] = message["rows"]
        if parts.keys() >= set(self._current.names) and self._cloud is not None:
            del self._progress.uploaded[step]
            rows = [row for part in parts.values() for row in part]
            task = asyncio.get_running_loop().create_task(asyncio.to_thread(self._commit_upload, step, rows, message))
            task.add_done_callback(_told)
            self._uploads.append(task)

    def _commit_upload(self, step: int, rows: Sequence[Any], message: Message) -> None:
        """Write the manifest of a step, all parts of which are in the object store."""
        assert self._cloud is not None, "parts come from machines that have one"
        held = [Held(machine="", tier=CLOUD, step=step, generation=0, stored=stored) for stored in pieces_of(rows)]
        pieces = cover(held, self._run.shapes, self._run.kinds)
        if pieces is None:
            print(f"step {step} in the object store is not whole, and is not committed", file=sys.stderr, flush=True)
            return
        self._cloud.commit(
            Manifest(
                step=step,
                model=self._run.settings["model"],
                settings=dict(self._run.settings),
                data={"samples": step * self._options.plan.job.global_batch},
                random={"seed": self._options.settings.seed},
                loss_scale=message["scale"],
                parameters=self._run.shapes,
                pieces=tuple(items[0].stored for items in pieces.values()),
            )
        )
        self._cloud.keep_newest()

    async def _lead(self) -> None:
        try:
            await self._gathered()
            while not self.closed:
                if self._cause:
                    await self._recover()
                elif self._finished():
                    await self._end()
                    return
                self._event.clear()
                if not self._cause and not self._finished():
                    await self._event.wait()
        except MinorityError as error:
            self.closed = True
            for member in list(self._members.values()):
                member.channel.close("this coordinator has no majority")
            self._step_down(str(error), None)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a defect must not leave the machines waiting for ever
            self._give_up(f"error: the recovery failed: {type(error).__name__}: {error}", GAVE_UP)
            raise

    async def _end(self) -> None:
        """End the run, once its last step is in all tiers."""
        step = max(self._progress.held)
        await self._ask_all("flush", step=step, generation=self._current.number)
        await asyncio.gather(*self._uploads, return_exceptions=True)
        self.closed = True
        await self._ask_all("end", status=ENDED, generation=self._current.number)

    def _give_up(self, reason: str, status: int) -> None:
        """End the run on all machines."""

        async def end() -> None:
            await asyncio.gather(
                *(m.channel.call("end", status=status, timeout=2.0) for m in self._members.values()),
                return_exceptions=True,
            )
            self._step_down(reason, status)

        if not self.closed:
            self.closed = True
            self._ending = asyncio.get_running_loop().create_task(end())

    async def _gathered(self) -> None:
        """Wait for the machines of the generation before, or at the beginning for as many as the plan needs."""
        end = time.monotonic() + (
            self._options.silence_seconds if self._before.machines else self._options.wait_seconds
        )
        while time.monotonic() < end and not self._all_there():
            self._event.clear()
            with_limit = asyncio.wait_for(self._event.wait(), max(end - time.monotonic(), 0.01))
            await asyncio.gather(with_limit, return_exceptions=True)

    def _all_there(self) -> bool:
        if not self._before.machines:
            return fits(self._plan, self._machines())
        expected = {m.name for m in self._before.machines if (m.host, m.port) not in self._lost_addresses}
        return expected <= self._members.keys()

    def _finished(self) -> bool:
        """Return whether all ranks are done and their last step is one that all machines have."""
        last = max(self._progress.held, default=-1)
        there = self._progress.held.get(last, set()) >= set(self._current.names)
        return 0 < self._progress.ranks <= len(self._progress.finished) and there

    def _machines(self) -> list[Machine]:
        return [member.machine for member in self._members.values()]

    async def _recover(self) -> None:
        """Bring the run to the next generation."""
        for _ in range(ATTEMPTS):
            recovery = Recovery(cause=self._cause, began=self._noticed)
            self._cause = ""
            try:
                await self._attempt(recovery)
            except WaitError:
                return  # the next machine that comes begins a recovery
            except (BeginAgainError, LostError, RefusedError) as error:
                self._cause = self._cause or str(error)
                print(f"recovery begins anew: {self._cause}", file=sys.stderr, flush=True)
                await asyncio.sleep(0.05)
                continue
            recovery.tell(self._options.settings.out)
            return
        self._give_up(f"error: {ATTEMPTS} attempts to recover failed: {self._cause}", GAVE_UP)

    async def _attempt(self, recovery: Recovery) -> None:
        number = self._highest = max(self._highest, self._before.number) + 1
        halted = await self._ask_all("halt", generation=number)
        recovery.lap("detect")
        await self._require_quorum()
        machines = [self._members[name].machine for name in halted]
        generation = Generation(number=number, machines=next_generation(self._before, machines).machines)
        reports = [report_of(report) for reply in halted.values() for report in reply["reports"].values()]
        settled = settle([report for report in reports if report.step >= 0])
        answers = await self._ask_all("settle", generation=number, step=settled.step, vote=settled.vote)
        recovery.lap("re-form")
        held = [held_of(row) for reply in answers.values() for row in reply["held"]]
        for words in disagreements(held):
            print(f"warning: {words}", file=sys.stderr, flush=True)
        state = await self._surviving(held)
        plan = await self._plan_for(generation.machines)
        where = seats(plan, generation.machines)
        scale = _scale(answers, state)
        recovery.lap("plan")
        if state is not None:
            await self._move(recovery, generation, plan, state, scale)
        recovery.lap("move")
        self._progress, self._current = Progress(ranks=len(where)), generation
        me = self._options.machine
        await self._ask_all(
            "start",
            generation=number,
            plan=to_document(plan),
            machines=[machine_data(machine) for machine in generation.machines],
            seats=[[seat.machine, seat.slot] for seat in where],
            store=[me.host, me.port],
            step=0 if state is None else state.step,
            scale=scale,
        )
        self._before, self._plan = generation, plan
        recovery.lap("start")
        recovery.reached(generation, 0 if state is None else state.step, plan)

    async def _require_quorum(self) -> None:
        """Raise MinorityError where others may go on without these machines. The object store is the arbiter: one
        coordinator alone can claim to follow a generation. A majority goes on where it cannot be reached."""
        found = quorum(self._before, list(self._members))
        claimed = not found.needs_arbiter
        if self._cloud is not None and self._before.number:
            name = f"generations/{self._run.name}-after-{self._before.number:06d}"
            try:
                claimed = await asyncio.to_thread(self._cloud.claim, name, self._options.machine.name)
            except Exception as error:  # object stores raise what they like
                print(f"the object store is no arbiter now: {error}", file=sys.stderr, flush=True)
        if not found.may_go_on or not claimed:
            raise MinorityError(f"{found.reason}; this machine waits for the others")

    async def _surviving(self, held: Sequence[Held]) -> State | None:
        """Return the newest step that survives on these machines, or with the help of the object store."""
        state = newest_state(held, self._run.shapes, self._run.kinds)
        if state is not None or self._cloud is None:
            return state
        try:
            stored = await asyncio.to_thread(lambda: list(self._cloud.held(self._run.settings["model"])))  # type: ignore[union-attr]
        except Exception as error:  # object stores raise what they like
            raise BeginAgainError(f"the object store cannot be read: {error}") from None
        return newest_state([*held, *stored], self._run.shapes, self._run.kinds)

    async def _plan_for(self, machines: Sequence[Machine]) -> Plan:
        """Return the plan to go on with on these machines. Raises BeginAgainError while there are too few for any."""
        if self._plan is self._options.plan and fits(self._plan, machines):
            return self._plan
        from shardwright.runtime.recovery.replanning import plan_for

        choice = await asyncio.to_thread(plan_for, self._plan, self._options.plan, machines)
        print(choice.reason, file=sys.stderr, flush=True)
        if choice.plan is None:
            raise WaitError(choice.reason)
        return choice.plan

    async def _move(self, recovery: Recovery, generation: Generation, plan: Plan, state: State, scale: Any) -> None:
        """Have every machine what it needs of a state."""
        layout, where = layout_of(plan), seats(plan, generation.machines)
        needs = machine_needs(layout, where, self._run.kinds, state, self._run.shapes)
        moves = movement(state, needs, generation.names, bandwidths_of(len(generation.machines), self._options.rates))
        if len(moves.plan.lost):
            raise BeginAgainError("pieces of the state survive nowhere")
        recovery.moved(moves)
        orders = orders_of(moves, state, generation.machines)
        fields = {"generation": generation.number, "step": state.step, "scale": scale}
        fields["of_generation"] = max(item.generation for items in state.pieces.values() for item in items)
        replies = await self._ask_each("fetch", {name: orders[name] | fields for name in generation.names})
        failed = [(name, item) for name, reply in replies.items() for item in reply["failed"]]
        for words, rows in _by_reason(failed).items():
            print(
                f"{len(rows)} pieces, among them the {rows[0][0]} of {rows[0][1]}: {words}", file=sys.stderr, flush=True
            )
            await self._ask_all("damaged", rows=rows, generation=generation.number)
        if failed:
            raise BeginAgainError(f"{len(failed)} pieces were damaged or did not arrive")

    async def _ask_all(self, op: str, **fields: Any) -> dict[str, Message]:
        return await self._ask_each(op, dict.fromkeys(self._members, fields))

    async def _ask_each(self, op: str, fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Message]:
        """Return the replies of machines. Raises LostError as soon as one of them is lost."""

        async def ask(name: str) -> Message:
            member = self._members.get(name)
            if member is None:
                raise LostError(f"{name} is lost")
            reply, _ = await member.channel.call(op, **fields[name])
            if not reply.get("ready", True):
                raise BeginAgainError(f"a worker of {name} did not start")
            return reply

        names = list(fields)
        return dict(zip(names, await asyncio.gather(*(ask(name) for name in names)), strict=True))


def _scale(answers: Mapping[str, Message], state: State | None) -> Any:
    if state is None:
        return None
    return next(
        (reply["scales"][str(state.step)] for reply in answers.values() if str(state.step) in reply["scales"]), None
    )


def _by_reason(failed: Sequence[tuple[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    """Return the rows of pieces that did not arrive, by where they were to come from and go, and why not."""
    found: dict[str, list[Any]] = {}
    for name, (row, sources, why) in failed:
        found.setdefault(f"from {' and '.join(sources)} to {name}: {why}", []).append(row)
    return found


def _told(done: asyncio.Task[None]) -> None:
    if not done.cancelled() and done.exception() is not None:
        print(f"the object store failed: {done.exception()}", file=sys.stderr, flush=True)
