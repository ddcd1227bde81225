"""The keeper of a machine: it holds the machine's snapshots, starts its workers, and stands for it among the machines.

It has no PyTorch, so that it is small and nothing of the training can take it down. It serves its workers (`desk`), the
coordinator of the generation (`duties`) and other keepers, and is the coordinator itself where its machine is the first
(`coordinator`).
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable
from dataclasses import replace
from math import inf
from typing import Any

from shardwright.runtime.recovery.base import BAD_INPUT, ENDED
from shardwright.runtime.recovery.channel import Channel, LostError, Message, RefusedError, Reply, connect
from shardwright.runtime.recovery.coordinator import Coordinator
from shardwright.runtime.recovery.course import run_of
from shardwright.runtime.recovery.desk import Desk
from shardwright.runtime.recovery.duties import Duties
from shardwright.runtime.recovery.errands import Errands
from shardwright.runtime.recovery.notices import Notice, watch
from shardwright.runtime.recovery.options import KeeperOptions
from shardwright.runtime.recovery.rows import machine_data
from shardwright.runtime.recovery.snapshots import Snapshots
from shardwright.runtime.recovery.staff import Staff

RETRY_SECONDS = 0.1


class Keeper:
    """One keeper. `run` serves until the training is done."""

    def __init__(self, options: KeeperOptions) -> None:
        self.options, self.run_identity = options, run_of(options)
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        host, port = options.address
        self.staff = Staff(host=host, port=port, settings=options.settings, on_gone=self._worker_gone)
        self.snapshots = Snapshots(options.memory, options.machine.name, self.run_identity.name)
        self.desk = Desk(options, self.snapshots, self.staff, self.tell_coordinator)
        self.duties = Duties(options, self.run_identity, self.snapshots, self.staff, self.desk, self._ended)
        self.leading: Coordinator | None = None
        self._leader: Channel | None = None
        self._was_member = False
        self._leads_at: tuple[str, int] | None = None
        self._leaving, self._alone_since = "", inf
        self._errands = Errands(what="keeping")

    async def serve(self) -> int:
        """Serve until the end, and return the exit status."""
        host, port = self.options.address
        server = await asyncio.start_server(self._accept, host, port)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._signalled)
        notice = Notice(source="SIGTERM", seconds=self.options.notice_seconds)
        loop.add_signal_handler(signal.SIGTERM, lambda: self._errands.begin(self._noticed(notice)))
        watching = [loop.create_task(watch(service, self._noticed)) for service in self.options.notices]
        hiring = loop.create_task(self.staff.start(self.options.machine.gpus + self.options.spares))
        following = loop.create_task(self._follow())
        try:
            await _first(self.over, following)
            if following.done():
                following.result()
            await hiring
            return self.over.result()
        finally:
            for task in (following, *watching):
                task.cancel()
            if self.leading is not None:
                self.leading.close()
            await self.staff.end()
            server.close()

    async def tell_coordinator(self, op: str, **fields: Any) -> None:
        """Tell the coordinator, if there is one now."""
        if self._leader is not None:
            await self._leader.tell(op, **fields)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def handle(message: Message, payload: bytes) -> Reply:
            return await self._answer(channel, message, payload)

        channel = Channel(reader, writer, handle)

    async def _answer(self, channel: Channel, message: Message, payload: bytes) -> Reply:
        """Answer a request: that of a newcomer, of a worker, of another keeper, or of the coordinator."""
        op = message["op"]
        if op == "join":
            return self._joined(channel, message), b""
        if op in Coordinator.HEARS:
            return (self.leading.hear(channel, message) if self.leading else {}), b""
        if op in Desk.ANSWERS:
            return await self.desk.answer(channel, message, payload)
        return await self.duties.answer(message)

    def _joined(self, channel: Channel, message: Message) -> Message:
        """Take a machine in, if this is the coordinator; else say who is."""
        if self.leading is not None:
            return self.leading.join(channel, message)
        return {"taken": False, "leader": self._leads_at if self._leader is not None else None}

    async def _follow(self) -> None:
        """Be a member of the generation, and its coordinator where that falls to this machine. An address where nobody
        was is passed over for as long as a silent machine has until it is lost: a link may have come back."""
        lost, since = set[tuple[str, int]](), time.monotonic()
        while not self.over.done():
            if time.monotonic() - since > self.options.silence_seconds:
                lost = set()
            for address in self._candidates():
                if address in lost:
                    continue
                if address == self.options.address:
                    self._lead(lost)
                if await self._joined_at(address):
                    if not self.duties.base.generation.machines:
                        continue
                    break
                since = time.monotonic()
                if self._was_member:  # of a generation that may be another by now
                    lost, self._was_member = {address}, False
                    break
                lost |= {address}
            else:
                lost = set()
                await asyncio.sleep(RETRY_SECONDS)

    def _candidates(self) -> list[tuple[str, int]]:
        """Return where the coordinator may be, in the order in which machines become it. A machine of no generation
        asks the others first: the run may have begun without it. The first of all that are named begins it."""
        machines, me = self.duties.base.generation.machines, self.options.address
        if not machines:
            others = [each for each in (self._leads_at, *self.options.join) if each is not None and each != me]
            return [*others, me] if self.options.join[0] == me else others
        known = [(machine.host, machine.port) for machine in machines]
        return (
            known if self.options.machine.name in self.duties.base.generation.names else [a for a in known if a != me]
        )

    def _lead(self, lost: set[tuple[str, int]]) -> None:
        if self.leading is None or self.leading.closed:
            base = replace(self.duties.base, alone_since=self._alone_since)
            self.leading = Coordinator(self.options, self.run_identity, base, lost, self._stepped_down)

    def _stepped_down(self, reason: str, status: int | None) -> None:
        self.leading, self._alone_since = None, min(self._alone_since, time.monotonic())
        print(reason, file=sys.stderr, flush=True)
        if status is not None:
            self._ended(status)

    async def _joined_at(self, address: tuple[str, int]) -> bool:
        """Join the coordinator at an address and be a member until it is lost; False where nobody is there any more.
        A machine that is not the coordinator may become it, so it is asked again."""
        over, limit = asyncio.Event(), self.options.silence_seconds
        try:
            channel = await connect(*address, self._from_leader, timeout=limit, on_lost=lambda *_: over.set())
        except LostError:
            return False
        try:
            me, generation = machine_data(self.options.machine), self.duties.base.generation
            members = [machine_data(machine) for machine in generation.machines]
            reply, _ = await channel.call(
                "join",
                timeout=limit,
                machine=me,
                number=generation.number,
                members=members,
                run=self.run_identity.name,
                leaving=self._leaving,
            )
            if "refused" in reply:
                print(f"error: {reply['refused']}", file=sys.stderr, flush=True)
                self._ended(BAD_INPUT)
                return False
            if not reply.get("taken"):
                self._leads_at = tuple(reply["leader"]) if reply.get("leader") else None
                await asyncio.sleep(RETRY_SECONDS)
                return True
            self._leader, self._leads_at, self._was_member = channel, address, True
            if address != self.options.address:
                self._alone_since = inf
            channel.watch(self.options.beat_seconds, self.options.silence_seconds)
            await _first(over.wait(), self.over)
            return False
        except (LostError, RefusedError):
            return False
        finally:
            self._leader = None
            channel.close()

    async def _from_leader(self, message: Message, _payload: bytes) -> Reply:
        return await self.duties.answer(message)

    def _worker_gone(self, slot: int, how: str) -> None:
        reason = f"the worker of GPU {slot} on {self.options.machine.name} {how}"
        generation = self.duties.base.generation.number
        self._errands.begin(self.tell_coordinator("stuck", reason=reason, generation=generation))

    def _signalled(self) -> None:
        print("stopping after this step, with a snapshot", file=sys.stderr, flush=True)
        self._errands.begin(self.staff.stop())

    async def _noticed(self, notice: Notice) -> None:
        """Have this machine's part handed over to the others before it is taken away."""
        self._leaving = f"{notice.source}, in {notice.seconds:.0f} s"
        print(f"{self.options.machine.name} is taken away: {self._leaving}", file=sys.stderr, flush=True)
        if self._leader is None and not self.duties.base.generation.machines:
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
