"""The keeper of a machine: it holds the machine's snapshots, starts its workers, and stands for it among the machines.

It has no PyTorch, so that it is small and nothing of the training can take it down. It answers its workers and other
keepers (`worker_requests`) and the coordinator of the generation (`coordinator_requests`), and is the coordinator
itself where that falls to it (`recovery.quorum`, `change.coordinator`)."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Any
from weakref import WeakSet

from shardwright.records import record
from shardwright.recovery.quorum import Address, Standing, leader_of
from shardwright.runtime.job.course import identity_of
from shardwright.runtime.job.ending import leave, stop_signals, terminals
from shardwright.runtime.recovery.change.coordinator import Coordinator
from shardwright.runtime.recovery.fleet.membership import ask_standings, standing_data
from shardwright.runtime.recovery.keeper.coordinator_requests import CoordinatorRequests
from shardwright.runtime.recovery.keeper.preemption import Notice, watch
from shardwright.runtime.recovery.keeper.worker_pool import WorkerPool
from shardwright.runtime.recovery.keeper.worker_requests import WorkerRequests
from shardwright.runtime.recovery.run import BAD_INPUT, ENDED, KeeperOptions
from shardwright.runtime.recovery.state.snapshots import Snapshots
from shardwright.runtime.recovery.wire import (
    BackgroundTasks,
    Channel,
    LostError,
    Message,
    RefusedError,
    Reply,
    StrangerError,
    connect,
    listen,
)

RETRY_SECONDS = 0.1
STANDING_FRACTION = 1 / 3  # fraction of `silence_seconds` in which a machine has to say how it stands


@record
class Minority:
    """Since when (monotonic) this machine has been in a minority of a generation."""

    generation: int = -1
    since: float = inf


class Keeper:
    """One keeper. `run` serves until the training is done."""

    def __init__(self, options: KeeperOptions) -> None:
        self.options = options
        self.run_identity = identity_of(options.plan, options.settings, snapshot_every=options.snapshot_every)
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        host, port = options.address
        self.pool = WorkerPool(
            host=host, port=port, secret=options.secret, settings=options.settings, on_gone=self._worker_gone
        )
        self.snapshots = Snapshots(options.memory, options.machine.name, self.run_identity.name)
        self.from_workers = WorkerRequests(options, self.snapshots, self.pool, self.tell_coordinator)
        self.from_coordinator = CoordinatorRequests(
            options, self.run_identity, self.snapshots, self.pool, self.from_workers, self._ended
        )
        self.leading: Coordinator | None = None
        self._leader: Channel | None = None
        self._leads_at: Address | None = None
        self._lost: Address | None = None
        self._heard: set[Address] = set()
        self._said = ""
        self._leaving = ""
        self._minority = Minority()
        self._background = BackgroundTasks(what="keeping")
        self._accepted = WeakSet[Channel]()

    async def serve(self) -> int:
        """Serve until the end, and return the exit status."""
        host, port = self.options.address
        server = await listen(host, port, self._accept, secret=self.options.secret)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._signalled)
        notice = Notice(source="SIGTERM", seconds=self.options.notice_seconds)
        shown = terminals()
        for number in set(stop_signals()) - {signal.SIGINT}:
            loop.add_signal_handler(number, self._taken_away, notice, shown if number == signal.SIGHUP else ())
        watching = [loop.create_task(watch(service, self._noticed)) for service in self.options.notices]
        self.pool.start(self.options.machine.gpus, self.options.spares)
        following = loop.create_task(self._follow())
        watching.append(loop.create_task(self._check_leader()))
        try:
            await _first(self.over, following)
            if following.done():
                following.result()
            return self.over.result()
        finally:
            for task in (following, *watching):
                task.cancel()
            if self.leading is not None:
                self.leading.close()
            await self.pool.end()
            server.close()
            for channel in [*self._accepted]:
                channel.close("the keeper ends")

    async def tell_coordinator(self, op: str, **fields: Any) -> None:
        """Tell the coordinator, if there is one now."""
        if self._leader is not None:
            await self._leader.tell(op, **fields)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def handle(message: Message, payload: bytes) -> Reply:
            return await self._answer(channel, message, payload)

        channel = Channel(reader, writer, handle)
        self._accepted.add(channel)

    async def _answer(self, channel: Channel, message: Message, payload: bytes) -> Reply:
        """Answer a request: that of a newcomer, of a worker, of another keeper, or of the coordinator."""
        op = message["op"]
        if op == "join":  # which a machine does that takes this one for the coordinator
            return ({"taken": False} if self.leading is None else self.leading.join(channel, message)), b""
        if op == "standing":
            return self._stands(message), b""
        if op in Coordinator.HEARS:
            return (self.leading.hear(channel, message) if self.leading else {}), b""
        if op in WorkerRequests.ANSWERS:
            return await self.from_workers.answer(channel, message, payload)
        return await self.from_coordinator.answer(message)

    def _stands(self, message: Message) -> Message:
        """Say how this machine stands, and hear where the one that asks has its coordinator."""
        if message["leader"] is not None:
            self._heard.add(tuple(message["leader"]))
        return standing_data(self._standing())

    def _standing(self) -> Standing:
        leading = self.leading is not None and not self.leading.closed
        following = self._leads_at if self._leader is not None else None
        leader = self.options.address if leading else following
        return Standing(address=self.options.address, generation=self.from_coordinator.base.generation, leader=leader)

    async def _standings(self, passing: Collection[Address] = ()) -> list[Standing]:
        """Return what the machines of the generation and of `--join` say of themselves, `passing` over some, and those
        they tell of."""
        generation = self.from_coordinator.base.generation.machines
        known = {*self.options.join, *(machine.address for machine in generation), *self._heard}
        self._heard.clear()
        seconds = STANDING_FRACTION * self.options.silence_seconds
        try:
            return await ask_standings(self._standing(), known - {self._lost, *passing}, seconds, self.options.secret)
        except StrangerError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            self._ended(BAD_INPUT)
            return [self._standing()]

    async def _follow(self) -> None:
        """Be a member of the generation, and its coordinator where that falls to this machine."""
        while not self.over.done():
            standings = await self._standings()
            if self.over.done():
                return
            self._lost = None  # but for this once, as it may be back
            leader = leader_of(standings, self.options.join[0])
            if leader == self.options.address:
                self._lead([standing.address for standing in standings])
            if leader is None or not await self._joined_at(leader):
                await asyncio.sleep(RETRY_SECONDS)

    async def _check_leader(self) -> None:
        """While this machine coordinates, give way to whoever has a newer generation; while the machines that it has
        train, it asks others alone."""
        while not self.over.done():
            await asyncio.sleep(self.options.silence_seconds)
            leading = self.leading
            if leading is not None:
                others = await self._standings(() if leading.idle else leading.members.addresses)
                leader = leader_of(others, self.options.join[0])
                if leader not in (self.options.address, None) and leading is self.leading:
                    leading.give_way(f"the run goes on at {leader[0]}:{leader[1]}")

    def _lead(self, here: Collection[Address]) -> None:
        if self.leading is None or self.leading.closed:
            base = self.from_coordinator.base
            if self._minority.generation == base.generation.number:
                base = replace(base, minority_since=self._minority.since)
            self.leading = Coordinator(self.options, self.run_identity, base, here, self._stepped_down)

    def _stepped_down(self, reason: str, status: int | None) -> None:
        self.leading, generation = None, self.from_coordinator.base.generation.number
        if self._minority.generation != generation:
            self._minority = Minority(generation=generation, since=time.monotonic())
        if reason not in ("", self._said):
            print(reason, file=sys.stderr, flush=True)
        self._said = reason
        if status is not None:
            self._ended(status)

    async def _joined_at(self, address: Address) -> bool:
        """Join the coordinator at an address and be a member until it is lost; False where there is none."""
        over, limit = asyncio.Event(), self.options.silence_seconds
        try:
            secret, lost = self.options.secret, lambda *_: over.set()
            channel = await connect(*address, self._from_leader, secret=secret, timeout=limit, on_lost=lost)
        except LostError:
            return False
        try:
            me, ready = asdict(self.options.machine), self.pool.ready.is_set()
            reply, _ = await channel.call(
                "join", timeout=limit, machine=me, terms=self.run_identity.terms, leaving=self._leaving, ready=ready
            )
            if "refused" in reply:
                print(f"error: {reply['refused']}", file=sys.stderr, flush=True)
                self._ended(BAD_INPUT)
            if not reply.get("taken"):
                return False
            self._leader, self._leads_at = channel, address
            if address != self.options.address:
                self._minority = Minority()
            channel.watch(self.options.beat_seconds, self.options.silence_seconds)
            if not ready:
                self._background.begin(self._said_ready(channel))
            await _first(over.wait(), self.over)
            self._lost = None if address == self.options.address else address
            return True
        except (LostError, RefusedError):
            return False
        finally:
            self._leader = None
            channel.close()

    async def _said_ready(self, leader: Channel) -> None:
        """Tell a coordinator once the workers have started: until then those that train go on without this machine."""
        await self.pool.ready.wait()
        await leader.tell("ready")

    async def _from_leader(self, message: Message, _payload: bytes) -> Reply:
        return await self.from_coordinator.answer(message)

    def _worker_gone(self, slot: int, how: str) -> None:
        reason = f"the worker of GPU {slot} on {self.options.machine.name} {how}"
        generation = self.from_coordinator.base.generation.number
        self._background.begin(self.tell_coordinator("stuck", reason=reason, generation=generation))

    def _signalled(self) -> None:
        print("stopping after this step, with a snapshot", file=sys.stderr, flush=True)
        self._background.begin(self.pool.stop())

    def _taken_away(self, notice: Notice, hung_up: Sequence[int]) -> None:
        leave(hung_up)
        self._background.begin(self._noticed(notice))

    async def _noticed(self, notice: Notice) -> None:
        """Have this machine's part handed over to the others before it is taken away."""
        self._leaving = f"{notice.source}, in {notice.seconds:.0f} s"
        print(f"{self.options.machine.name} is taken away: {self._leaving}", file=sys.stderr, flush=True)
        if self._leader is None and not self.from_coordinator.base.generation.machines:
            self._ended(ENDED)  # nothing has begun
        await self.tell_coordinator("leaving", why=self._leaving)

    def _ended(self, status: int) -> None:
        if not self.over.done():
            self.over.set_result(status)


async def _first(*waits: Awaitable[Any]) -> None:
    """Wait for the first of several, and leave the others."""
    await asyncio.wait([asyncio.ensure_future(wait) for wait in waits], return_when=asyncio.FIRST_COMPLETED)


def keep(options: KeeperOptions) -> int:
    """Run a keeper until the training is done, and return the exit status."""

    async def main() -> int:
        return await Keeper(options).serve()

    return asyncio.run(main())
