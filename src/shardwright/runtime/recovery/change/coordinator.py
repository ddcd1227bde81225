"""The coordinator of a generation: it takes machines in, hears of steps and losses, and brings the run to the next
generation (`generation_change`) whenever machines come or go. `recovery.quorum` says which keeper it is."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from shardwright.recovery.quorum import Address, Generation, Machine
from shardwright.recovery.slow import Pace, answer, slowed
from shardwright.runtime.job.course import RunIdentity, other_terms
from shardwright.runtime.recovery.change.generation_change import (
    BehindError,
    GenerationChange,
    NothingLeftError,
    OtherRunError,
    Recovery,
    WaitError,
)
from shardwright.runtime.recovery.fleet.membership import (
    BeginAgainError,
    Etcd,
    Members,
    MinorityError,
    QuorumCheck,
    wait_for_generation,
    wait_for_plan,
)
from shardwright.runtime.recovery.fleet.observations import Causes, FleetHistory, GenerationProgress, RankSpeeds
from shardwright.runtime.recovery.run import BAD_INPUT, ENDED, GAVE_UP, GenerationBase, KeeperOptions
from shardwright.runtime.recovery.state.cloud import Cloud, Uploads
from shardwright.runtime.recovery.wire import BackgroundTasks, Channel, LostError, Message, RefusedError

# A recovery is tried so often, with pauses that double: half a minute, in which an object store may come back.
ATTEMPTS, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 12, 0.05, 5.0
GOODBYE_SECONDS, LONGEST_WAIT_SECONDS = 2.0, 3600.0


class Coordinator:
    """Coordinates from its creation until it is closed, at first waiting for those of its generation that are `here`.
    `step_down` is called with the reason, and with an exit status where the whole run is over."""

    HEARS = frozenset(("held", "finished", "stuck", "bad input", "failed", "uploaded", "leaving", "pace", "ready"))

    def __init__(
        self,
        options: KeeperOptions,
        run: RunIdentity,
        base: GenerationBase,
        here: Collection[Address],
        step_down: Callable[[str, int | None], None],
    ) -> None:
        self._options, self._run, self._step_down, self.closed = options, run, step_down, False
        self._here, self.members = frozenset(here), Members()
        cloud = Cloud(options.upload) if options.upload else None
        self._uploads = None if cloud is None else Uploads(options=options, run=run, cloud=cloud)
        self._quorum = QuorumCheck(
            me=options.machine.name,
            run=run.name,
            claim_store=Etcd(members=options.etcd) if options.etcd else cloud,
            silence_seconds=options.silence_seconds,
            wait_seconds=options.wait_seconds,
        )
        self._change = GenerationChange(
            options=options, run=run, members=self.members, cloud=cloud, quorum=self._quorum
        )
        before = base.generation
        self._base, self._current, self._progress = base, before, GenerationProgress()
        self._highest = before.number
        self._causes = Causes()
        self._event = asyncio.Event()
        if before.machines:
            first = before.names[0]
            self._request_recovery(
                f"{'another' if first == options.machine.name else first} is gone, which coordinated"
            )
        else:
            self._request_recovery("the run begins")
        self._history = FleetHistory()
        self._leaving: set[str] = set()
        self._speeds, self._slow = RankSpeeds(ranks=0), dict[str, float]()
        self._background = BackgroundTasks(what="coordinating")
        self._task = asyncio.get_running_loop().create_task(self._lead())

    def join(self, channel: Channel, message: Message) -> Message:
        """Take a machine in, unless it is of another run."""
        machine = Machine(**message["machine"])
        if other := other_terms(self._run.terms, message["terms"]):
            hint = "start all machines with the same options: only paths and what is a machine's own may differ"
            return {"refused": f"{machine.name} is of another run: {'; '.join(other)} ({hint})"}
        self.members.put(machine, channel, ready=message["ready"])
        channel.on_lost = self._member_lost
        channel.watch(self._options.beat_seconds, self._options.silence_seconds)
        self._history.changed(len(self.members.by_name), came=1)
        if message["ready"] or not self._trains_without(machine.name):
            self._request_recovery(f"{machine.name} came", of=machine.name)
        if message.get("leaving"):
            self._leaves(machine.name, message["leaving"])
        return {"taken": True}

    def hear(self, channel: Channel, message: Message) -> Message:
        """Take note of what a keeper says of its machine."""
        name = self.members.name_of(channel)
        match message["op"]:
            case "bad input":
                self._give_up(f"error: {message['reason']}", BAD_INPUT)
            case "failed":
                self._give_up(f"error: {name}: {message['reason']}", GAVE_UP)
            case "leaving":
                self._leaves(name, message["why"])
            case "ready":
                self._ready(name)
            case op if message.get("generation") == self._highest:  # the others are over
                self._heard(op, name, message)
        return {}

    def _heard(self, op: str, name: str, message: Message) -> None:
        """Take note of how the generation goes on a machine."""
        match op:
            case "stuck":
                self._request_recovery(f"{name}: {message['reason']}")
            case "uploaded" if self._uploads is not None:
                self._uploads.take(name, message, self._progress.machines)
            case "pace":
                self._paced(Pace(rank=(name, message["slot"]), work=message["work"], seconds=message["seconds"]))
            case "held" if self._progress.take(name, message["step"]):
                self._event.set()
                telling = self.members.tell_all(
                    "commit", GOODBYE_SECONDS, step=message["step"], generation=self._highest
                )
                self._background.begin(telling)
            case "finished":
                self._progress.finished.add((name, message["slot"]))
                self._progress.held.setdefault(message["step"], set())
                self._event.set()

    @property
    def idle(self) -> bool:
        """Whether nothing trains, as machines are waited for."""
        return not self._progress.ranks

    def give_way(self, reason: str) -> None:
        """Coordinate no more, as others do, or may."""
        self.close()
        self.members.close(reason)
        self._step_down(reason, None)

    def close(self) -> None:
        self.closed = True
        if self._task is not asyncio.current_task():
            self._task.cancel()

    def _member_lost(self, channel: Channel, reason: str) -> None:
        name = self.members.name_of(channel)
        if name:
            del self.members.by_name[name]
            if not self.closed:
                self._history.changed(len(self.members.by_name), lost=1)
                if not self._trains_without(name):
                    self._request_recovery(f"{name} is lost: {reason}")

    def _trains_without(self, name: str) -> bool:
        """Return whether the run trains, and not on this machine."""
        return not self.idle and name not in self._current.names

    def _ready(self, name: str) -> None:
        """Go on with a machine as well, now that its workers have started."""
        self.members.change(name, ready=True)
        if self.idle or self._trains_without(name):
            self._request_recovery(f"{name} came", of=name)

    def _leaves(self, name: str, why: str) -> None:
        """Go on without a machine that is taken away soon; where all are, stop with a snapshot."""
        self._leaving.add(name)
        if self.members.by_name.keys() <= self._leaving:
            self._background.begin(self.members.tell_all("stop", GOODBYE_SECONDS))
        else:
            self._request_recovery(f"{name} is taken away ({why})")

    def _paced(self, pace: Pace) -> None:
        """Note how long a rank computes; a machine that is slow is named, and split around where that pays."""
        slow = {name: factor for name, factor in self._speeds.take(pace).items() if name in self.members.by_name}
        if slow and slow.keys() - self._slow.keys():
            self._slow |= slow
            self._background.begin(self._answered(slow))

    async def _answered(self, slow: Mapping[str, float]) -> None:
        shown = ", ".join(f"{name} computes {factor:.2f} times as long as it should" for name, factor in slow.items())
        base, machines = self._base, self.members.machines
        decision, split = await asyncio.to_thread(answer, base.plan, self._options.plan, machines, slow, base.outlook)
        print(f"{shown}; {decision.reason}", file=sys.stderr, flush=True)
        if split and base is self._base:
            for name, factor in slow.items():
                if name in self.members.by_name:
                    self.members.change(name, machine=slowed(self.members.by_name[name].machine, factor))
            self._request_recovery(shown)

    async def _goodbye(self, leaving: Collection[str]) -> None:
        """Let machines go that have given what they had."""
        channels = [self.members.by_name.pop(name).channel for name in leaving if name in self.members.by_name]
        self._leaving -= set(leaving)
        if channels:
            self._history.changed(len(self.members.by_name), lost=len(channels))
        calls = (channel.call("end", status=ENDED, left=True, timeout=GOODBYE_SECONDS) for channel in channels)
        await asyncio.gather(*calls, return_exceptions=True)

    def _request_recovery(self, cause: str, *, of: str = "") -> None:
        """Bring the run to the next generation, which `of` has to be in, if it is for a machine."""
        self._causes.add(cause, of=of)
        self._event.set()

    def _waited(self, number: int) -> None:
        if number == self._highest and not self.closed:
            self._request_recovery("no machine has come")

    async def _lead(self) -> None:
        try:
            await self._wait_for_machines()
            while not self.closed:
                if self._causes:
                    await self._recover()
                elif self._progress.over:
                    with suppress(LostError):  # a machine is lost at the very end
                        return await self._end()
                self._event.clear()
                if not self._causes and not self._progress.over:
                    await self._event.wait()
        except NothingLeftError as error:
            self._give_up(f"error: {error} (begin from a checkpoint, or anew with an empty folder)", GAVE_UP)
        except OtherRunError as error:
            self._give_up(f"error: {error}", BAD_INPUT)
        except MinorityError as error:
            self.give_way(str(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a defect must not leave the machines waiting for ever
            self._give_up(f"error: the recovery failed: {type(error).__name__}: {error}", GAVE_UP)
            raise

    async def _end(self) -> None:
        """End the run, once its last step is in all tiers."""
        step, number = max(self._progress.held), self._current.number
        await self.members.ask_all("flush", step=step, generation=number)
        if self._uploads is not None:
            await self._uploads.background.finished()
        self.closed = True
        await self.members.tell_all("end", GOODBYE_SECONDS, status=ENDED, generation=number)

    def _give_up(self, reason: str, status: int) -> None:
        """End the run on all machines."""

        heard_here = self._options.machine.name in self.members.by_name

        async def end() -> None:
            await self.members.tell_all("end", GOODBYE_SECONDS, status=status, reason=reason)
            self._step_down("" if heard_here else reason, status)

        if not self.closed:
            self.closed = True
            self._background.begin(end())

    async def _wait_for_machines(self) -> None:
        """Wait for the machines of the generation before, or at the beginning for as many as the plan needs."""
        before = self._base.generation
        if before.machines:
            await wait_for_generation(self._options, before, self._here, self.members, self._event)
            return
        await wait_for_plan(self._options, self.members, self._event, self._change.cloud)
        number = await self._quorum.first_free()
        self._base = replace(self._base, generation=Generation(number=number, machines=()))

    async def _recover(self) -> None:
        """Bring the run to the next generation."""
        for attempt in range(ATTEMPTS):
            cause, leaving = self._causes.take(), self._leaving & self.members.by_name.keys()
            recovery = Recovery(cause=cause.words, began=cause.noticed)
            if attempt:
                recovery.lap("failed attempts")
            try:
                await self._attempt(recovery, leaving)
            except WaitError as error:  # the next machine that comes begins a recovery, or that none has come
                again = min(error.again_seconds, LONGEST_WAIT_SECONDS)
                asyncio.get_running_loop().call_later(again, self._waited, self._highest)
                self._progress = GenerationProgress()
                await self._goodbye(leaving)
                return
            except BehindError as error:
                self._highest = max(self._highest, error.promised)
                why = self._causes.retry(cause.words, cause.noticed)
            except (BeginAgainError, LostError, RefusedError) as error:
                why = self._causes.retry(str(error), cause.noticed)
                print(f"recovery begins anew: {why}", file=sys.stderr, flush=True)
                await asyncio.sleep(min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS))
            else:
                recovery.tell(self._options.settings.out)
                await self._goodbye(leaving)
                return
        self._give_up(f"error: {ATTEMPTS} attempts to recover failed: {why}", GAVE_UP)

    async def _attempt(self, recovery: Recovery, leaving: Collection[str]) -> None:
        self._highest = max(self._highest, self._base.generation.number) + 1
        wanted = sum(pool.nodes for pool in self._options.plan.cluster.pools)
        base = replace(self._base, outlook=self._history.outlook(wanted))
        ready = await self._change.prepare(base, self._highest, recovery, leaving)
        self._current = ready.base.generation
        machines = frozenset(seat.machine for seat in ready.seats)
        self._progress = GenerationProgress(ranks=len(ready.seats), machines=machines)
        self._causes.settled(self._current.names)  # whose workers may have started meanwhile
        self._speeds = RankSpeeds(ranks=len(ready.seats))
        await self._change.start(ready)
        recovery.lap("start")
        self._base = ready.base
        self._history.begins(len(self.members.by_name))
