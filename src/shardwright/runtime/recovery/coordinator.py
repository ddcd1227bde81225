"""The coordinator of a generation, which is the keeper of its first machine: it takes machines in, hears of steps and
losses, and brings the run to the next generation (`passage`) whenever machines come or go."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from shardwright.recovery.outlook import Change, outlook_of
from shardwright.recovery.quorum import Generation
from shardwright.recovery.seats import fits
from shardwright.recovery.slow import Pace, answer, slowed
from shardwright.runtime.recovery.base import BAD_INPUT, ENDED, GAVE_UP, Base
from shardwright.runtime.recovery.channel import Channel, LostError, Message, RefusedError
from shardwright.runtime.recovery.course import Run
from shardwright.runtime.recovery.errands import Errands
from shardwright.runtime.recovery.members import BeginAgainError, Members
from shardwright.runtime.recovery.options import KeeperOptions
from shardwright.runtime.recovery.paces import Paces
from shardwright.runtime.recovery.passage import BehindError, MinorityError, NothingLeftError, Passage, WaitError
from shardwright.runtime.recovery.record import Recovery
from shardwright.runtime.recovery.rows import machine_of
from shardwright.runtime.recovery.tiers import Cloud
from shardwright.runtime.recovery.uploads import Uploads

ATTEMPTS = 12
GATHERING = 2.0
"""Times the silence after which a machine is lost: for so long a new coordinator waits for those of the generation."""
GOODBYE_SECONDS, LONGEST_WAIT_SECONDS = 2.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the ranks of a generation are: which machines have handed over which step, which GPUs have finished."""

    held: dict[int, set[str]] = field(default_factory=dict)
    finished: set[tuple[str, int]] = field(default_factory=set)
    ranks: int = 0

    def over(self, names: tuple[str, ...]) -> bool:
        """Return whether all ranks are done and their last step is one that all machines have."""
        last = max(self.held, default=-1)
        return 0 < self.ranks <= len(self.finished) and self.held.get(last, set()) >= set(names)


class Coordinator:
    """Coordinates from its creation until it is closed. `step_down` is called with the reason, and with an exit status
    where the whole run is over."""

    HEARS = frozenset(("held", "finished", "stuck", "bad input", "uploaded", "leaving", "pace"))

    def __init__(
        self,
        options: KeeperOptions,
        run: Run,
        base: Base,
        lost: set[tuple[str, int]],
        step_down: Callable[[str, int | None], None],
    ) -> None:
        self._options, self._run, self._step_down, self.closed = options, run, step_down, False
        self._lost_addresses = set(lost)
        self._members = Members()
        cloud = Cloud(options.upload) if options.upload else None
        self._uploads = None if cloud is None else Uploads(options=options, run=run, cloud=cloud)
        self._passage = Passage(options=options, run=run, members=self._members, cloud=cloud)
        before = base.generation
        self._base, self._current, self._progress = base, before, Progress()
        self._highest = before.number
        self._cause, self._noticed = "the run begins", time.monotonic()
        if before.machines:
            first = before.names[0]
            self._cause = f"{'another' if first == options.machine.name else first} is gone, which coordinated"
        self._changes: list[Change] = []
        self._leaving: set[str] = set()
        self._paces, self._slow = Paces(ranks=0), dict[str, float]()
        self._event = asyncio.Event()
        self._errands = Errands(what="coordinating")
        self._task = asyncio.get_running_loop().create_task(self._lead())

    def join(self, channel: Channel, message: Message) -> Message:
        """Take a machine in, unless it is of another run."""
        machine = machine_of(message["machine"])
        if message["run"] != self._run.name:
            return {"refused": f"{machine.name} has another plan, seed or optimizer than this run"}
        theirs = Generation(number=message["number"], machines=tuple(machine_of(m) for m in message["members"]))
        if theirs.number > self._base.generation.number and theirs.machines:
            self._base = replace(self._base, generation=theirs)
        self._highest = max(self._highest, theirs.number)
        self._members.put(machine, channel)
        channel.on_lost = self._member_lost
        channel.watch(self._options.beat_seconds, self._options.silence_seconds)
        self._changed(came=1)
        self._because(f"{machine.name} came")
        if message.get("leaving"):
            self._leaves(machine.name, message["leaving"])
        return {"taken": True}

    def hear(self, channel: Channel, message: Message) -> Message:
        """Take note of what a keeper says of its machine."""
        name = self._members.name_of(channel)
        if message["op"] == "bad input":
            self._give_up(f"error: {message['reason']}", BAD_INPUT)
        elif message["op"] == "leaving":
            self._leaves(name, message["why"])
        elif message.get("generation") != self._highest:
            return {}  # of a generation that is over
        elif message["op"] == "stuck":
            self._because(f"{name}: {message['reason']}")
        elif message["op"] == "uploaded" and self._uploads is not None:
            self._uploads.take(name, message, self._current.names)
        elif message["op"] == "pace":
            self._paced(Pace(rank=(name, message["slot"]), work=message["work"], seconds=message["seconds"]))
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
        name = self._members.name_of(channel)
        if name:
            del self._members.by_name[name]
            if not self.closed:
                self._changed(lost=1)
                self._because(f"{name} is lost: {reason}")

    def _leaves(self, name: str, why: str) -> None:
        """Go on without a machine that is taken away soon; where all are, stop with a snapshot."""
        self._leaving.add(name)
        if self._members.by_name.keys() <= self._leaving:
            self._errands.begin(self._members.tell_all("stop", GOODBYE_SECONDS))
        else:
            self._because(f"{name} is taken away ({why})")

    def _paced(self, pace: Pace) -> None:
        """Note how long a rank computes; a machine that is slow is named, and split around where that pays."""
        slow = {name: factor for name, factor in self._paces.take(pace).items() if name in self._members.by_name}
        if slow and slow.keys() - self._slow.keys():
            self._slow |= slow
            self._errands.begin(self._answered(slow))

    async def _answered(self, slow: Mapping[str, float]) -> None:
        shown = ", ".join(f"{name} computes {factor:.2f} times as long as it should" for name, factor in slow.items())
        base, machines = self._base, self._members.machines
        arguments = (base.plan, self._options.plan, machines, slow, base.outlook)
        decision, split = await asyncio.to_thread(answer, *arguments)
        print(f"{shown}; {decision.reason}", file=sys.stderr, flush=True)
        if split and base is self._base:
            for name, factor in slow.items():
                member = self._members.by_name.get(name)
                if member is not None:
                    self._members.by_name[name] = replace(member, machine=slowed(member.machine, factor))
            self._because(shown)

    async def _goodbye(self, leaving: Collection[str]) -> None:
        """Let machines go that have given what they had."""
        channels = [self._members.by_name.pop(name).channel for name in leaving if name in self._members.by_name]
        self._leaving -= set(leaving)
        if channels:
            self._changed(lost=len(channels))
        calls = (channel.call("end", status=ENDED, left=True, timeout=GOODBYE_SECONDS) for channel in channels)
        await asyncio.gather(*calls, return_exceptions=True)

    def _changed(self, *, lost: int = 0, came: int = 0) -> None:
        """Note for the outlook that machines changed; before anything trains, those that join are no arrivals."""
        if not self._changes:
            return
        there = len(self._members.by_name)
        self._changes.append(Change(seconds=time.monotonic(), machines=there, lost=lost, came=came))

    def _because(self, cause: str) -> None:
        if not self._cause:
            self._cause, self._noticed = cause, time.monotonic()
        self._event.set()

    def _waited(self, number: int) -> None:
        if number == self._highest and not self.closed:
            self._because("no machine has come")

    def _held(self, name: str, step: int) -> None:
        """Note that a machine has a step; when all have, they are told."""
        generation = self._current
        machines = self._progress.held.setdefault(step, set())
        machines.add(name)
        if machines >= set(generation.names):
            for old in [number for number in self._progress.held if number < step]:
                del self._progress.held[old]
            self._event.set()
            self._errands.begin(
                self._members.tell_all("commit", GOODBYE_SECONDS, step=step, generation=generation.number)
            )

    async def _lead(self) -> None:
        try:
            await self._gathered()
            while not self.closed:
                if self._cause:
                    await self._recover()
                elif self._progress.over(self._current.names):
                    await self._end()
                    return
                self._event.clear()
                if not self._cause and not self._progress.over(self._current.names):
                    await self._event.wait()
        except NothingLeftError as error:
            self._give_up(f"error: {error} (begin from a checkpoint, or anew with an empty folder)", GAVE_UP)
        except MinorityError as error:
            self.closed = True
            self._members.close("this coordinator has no majority")
            self._step_down(str(error), None)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a defect must not leave the machines waiting for ever
            self._give_up(f"error: the recovery failed: {type(error).__name__}: {error}", GAVE_UP)
            raise

    async def _end(self) -> None:
        """End the run, once its last step is in all tiers."""
        step, number = max(self._progress.held), self._current.number
        await self._members.ask_all("flush", step=step, generation=number)
        if self._uploads is not None:
            await self._uploads.errands.finished()
        self.closed = True
        await self._members.ask_all("end", status=ENDED, generation=number)

    def _give_up(self, reason: str, status: int) -> None:
        """End the run on all machines."""

        async def end() -> None:
            await self._members.tell_all("end", GOODBYE_SECONDS, status=status)
            self._step_down(reason, status)

        if not self.closed:
            self.closed = True
            self._errands.begin(end())

    async def _gathered(self) -> None:
        """Wait for the machines of the generation before, or at the beginning for as many as the plan needs."""
        before = self._base.generation
        limit = GATHERING * self._options.silence_seconds if before.machines else self._options.wait_seconds
        end = time.monotonic() + limit
        while time.monotonic() < end and not self._all_there():
            self._event.clear()
            with_limit = asyncio.wait_for(self._event.wait(), max(end - time.monotonic(), 0.01))
            await asyncio.gather(with_limit, return_exceptions=True)

    def _all_there(self) -> bool:
        before = self._base.generation.machines
        if not before:
            return fits(self._options.plan, self._members.machines)
        expected = {m.name for m in before if (m.host, m.port) not in self._lost_addresses}
        return expected <= self._members.by_name.keys()

    async def _recover(self) -> None:
        """Bring the run to the next generation."""
        for _ in range(ATTEMPTS):
            recovery = Recovery(cause=self._cause, began=self._noticed)
            self._cause, leaving = "", frozenset(self._leaving & self._members.by_name.keys())
            try:
                await self._attempt(recovery, leaving)
            except WaitError as error:  # the next machine that comes begins a recovery, or that none has come
                again = min(error.again_seconds, LONGEST_WAIT_SECONDS)
                asyncio.get_running_loop().call_later(again, self._waited, self._highest)
                await self._goodbye(leaving)
                return
            except BehindError as error:
                self._highest, self._cause = max(self._highest, error.promised), self._cause or recovery.cause
                continue
            except (BeginAgainError, LostError, RefusedError) as error:
                self._cause = self._cause or str(error)
                print(f"recovery begins anew: {self._cause}", file=sys.stderr, flush=True)
                await asyncio.sleep(0.05)
                continue
            recovery.tell(self._options.settings.out)
            await self._goodbye(leaving)
            return
        self._give_up(f"error: {ATTEMPTS} attempts to recover failed: {self._cause}", GAVE_UP)

    async def _attempt(self, recovery: Recovery, leaving: Collection[str]) -> None:
        self._highest = max(self._highest, self._base.generation.number) + 1
        wanted = sum(pool.nodes for pool in self._options.plan.cluster.pools)
        base = replace(self._base, outlook=outlook_of(self._changes, wanted, time.monotonic()))
        ready = await self._passage.prepare(base, self._highest, recovery, leaving)
        self._current, self._progress = ready.base.generation, Progress(ranks=len(ready.seats))
        self._paces = Paces(ranks=len(ready.seats))
        await self._passage.start(ready)
        recovery.lap("start")
        self._base = ready.base
        if not self._changes:
            there = len(self._members.by_name)
            self._changes.append(Change(seconds=time.monotonic(), machines=there, lost=0, came=there))
