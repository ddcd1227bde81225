"""The worker processes of one machine, started from a process that has PyTorch loaded: a new one is there at once."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from shardwright.runtime.job.settings import Settings
from shardwright.runtime.recovery.channel import Channel, LostError, Message, RefusedError
from shardwright.runtime.recovery.errands import Errands

PRELOADED = ["shardwright.runtime.recovery.worker", "torch.fx.experimental.symbolic_shapes"]
"""The second is what a backward pass imports when it is first run, in most of a second."""
START_SECONDS = 60.0
"""A new worker that has not come by then is given up; those after it have less to load."""
STARVED = 6.0
"""Times the silence after which a worker is lost, though it is not stopped: others may have taken its processors."""
STOPPED = ("T", "t", "Z", "X")
"""States of a process in Linux' /proc in which it does nothing: stopped, traced, dead."""


@dataclass(kw_only=True, eq=False)
class Hand:
    """A worker process. `slot` is the number of its GPU once it is assigned a rank."""

    token: int
    process: Any
    channel: asyncio.Future[Channel]
    slot: int | None = None


@dataclass(kw_only=True)
class Staff:
    """The workers of a machine. `on_gone` is called where one that has a rank dies; `ready` is set once there has been
    one for each GPU, with all that it imports."""

    host: str
    port: int
    secret: bytes
    settings: Settings
    on_gone: Callable[[int, str], None]
    hands: dict[int, Hand] = field(default_factory=dict)
    tokens: Any = field(default_factory=count)
    gpus: int = 0
    number: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    generation: int = 0
    ending: bool = False
    context: Any = None
    errands: Errands = field(default_factory=lambda: Errands(what="starting a worker"))

    def start(self, gpus: int, spares: int) -> None:
        """Have a worker for each GPU and some to spare from now on."""
        self.gpus, self.number = gpus, gpus + spares
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        for _ in range(self.number):
            self._hire()
        self._count()

    def arrived(self, token: int, channel: Channel) -> None:
        """Know the connection of a worker. Raises KeyError for a process that is none of ours."""
        hand = self.hands[token]
        channel.on_lost = lambda *_: kill(hand.process.pid)  # dead already, or silent: stopped or stuck
        if not hand.channel.done():
            hand.channel.set_result(channel)
        self._count()

    def _count(self) -> None:
        if sum(hand.channel.done() for hand in self.hands.values()) >= self.gpus:
            self.ready.set()

    def slot_of(self, channel: Channel) -> int | None:
        """Return the GPU of the worker behind a connection."""
        for hand in self.hands.values():
            if hand.channel.done() and not hand.channel.cancelled() and hand.channel.result() is channel:
                return hand.slot
        return None

    async def halt(self, generation: int, seconds: float) -> dict[int, Message]:
        """Return the reports of the workers by GPU; those that give none in time are killed. Nobody is assigned a rank
        of an older generation from now on."""
        self.generation = generation
        assigned = [hand for hand in self.hands.values() if hand.slot is not None]
        answers = await asyncio.gather(*(self._halted(hand, generation, seconds) for hand in assigned))
        return {
            hand.slot: report
            for hand, report in zip(assigned, answers, strict=True)
            if report and hand.slot is not None
        }

    async def settle(self, orders: Mapping[int, Message], seconds: float) -> None:
        """Give workers their orders by GPU."""
        found = [hand for hand in self.hands.values() if hand.slot in orders]
        await asyncio.gather(*(self._told(hand, orders[hand.slot or 0], seconds) for hand in found))

    async def assign(self, orders: Mapping[int, Message], seconds: float) -> str:
        """Give each GPU its rank, and return why they cannot train, "" once all are ready."""
        for hand in self.hands.values():
            if hand.slot not in orders:
                hand.slot = None
        for slot in orders.keys() - {hand.slot for hand in self.hands.values()}:
            self._fill(slot)
        answers = [asyncio.create_task(self._assigned(slot, order, seconds)) for slot, order in orders.items()]
        try:
            for answer in asyncio.as_completed(answers):
                told = await answer
                if not told.get("ready"):  # the others wait for one that will not come, until they are halted
                    return str(told["why"])
        finally:
            for task in answers:
                task.cancel()
        return ""

    def _fill(self, slot: int) -> None:
        """Have a worker for a GPU: a spare one, or a new one."""
        free = next((hand for hand in self.hands.values() if hand.slot is None), None)
        (free or self._hire()).slot = slot

    async def _assigned(self, slot: int, order: Message, seconds: float) -> Message:
        """Give a GPU its rank. A worker that is stuck in its communication is of no more use; another one gets it."""
        hand = next((hand for hand in self.hands.values() if hand.slot == slot), None)
        if hand is None or order["generation"] < self.generation:
            return {"why": "it has just died, or works for a newer generation"}
        answer = await self._told(hand, order, seconds)
        if answer.get("stuck"):
            self._let_go(hand)
            self._fill(slot)
            return await self._assigned(slot, order, seconds)
        return answer

    def processes(self) -> dict[int, int]:
        """Return the process of each GPU that has a rank."""
        return {hand.slot: hand.process.pid for hand in self.hands.values() if hand.slot is not None}

    async def stop(self) -> None:
        """Ask all workers to stop after their step."""
        for hand in self.hands.values():
            if hand.channel.done():
                await hand.channel.result().tell("stop")

    async def end(self) -> None:
        """End all workers."""
        self.ending = True
        await self.errands.finished()
        hands = list(self.hands.values())
        for hand in hands:
            await self._told(hand, {"op": "end"}, 1.0) if hand.channel.done() else None
            kill(hand.process.pid)
        for hand in hands:
            await asyncio.to_thread(hand.process.join, 5.0)

    def _hire(self) -> Hand:
        """Return a worker that is about to start."""
        token = next(self.tokens)
        arguments = (self.host, self.port, token, self.settings, self.secret)
        process = self.context.Process(target=_work, args=arguments, daemon=True)
        hand = self.hands[token] = Hand(
            token=token, process=process, channel=asyncio.get_running_loop().create_future()
        )
        self.errands.begin(self._started(hand))
        return hand

    async def _started(self, hand: Hand) -> None:
        """Start a worker, and hear of its death."""
        try:
            await asyncio.to_thread(hand.process.start)
        except BaseException:
            self.hands.pop(hand.token, None)
            hand.channel.cancel()
            raise
        asyncio.get_running_loop().add_reader(hand.process.sentinel, self._died, hand)

    def _died(self, hand: Hand) -> None:
        asyncio.get_running_loop().remove_reader(hand.process.sentinel)
        hand.process.join(1.0)
        self.hands.pop(hand.token, None)
        if hand.channel.done():
            hand.channel.result().close("the process ended")
        else:
            hand.channel.cancel()
        if self.ending:
            return
        if len(self.hands) < self.number:
            self._hire()
        if hand.slot is not None:
            self.on_gone(hand.slot, _how(hand.process.exitcode))

    async def _halted(self, hand: Hand, generation: int, seconds: float) -> Message | None:
        if not hand.channel.done():  # it has only just been hired
            hand.slot = None
            return None
        try:
            reply, _ = await hand.channel.result().call("halt", generation=generation, timeout=seconds)
            return dict(reply["report"])
        except (LostError, RefusedError):
            self._let_go(hand)
            return None

    async def _told(self, hand: Hand, order: Message, seconds: float) -> Message:
        try:
            channel = await asyncio.wait_for(asyncio.shield(hand.channel), min(seconds, START_SECONDS))
            fields = {name: value for name, value in order.items() if name != "op"}
            reply, _ = await channel.call(order["op"], timeout=seconds, **fields)
            return reply
        except (LostError, RefusedError, TimeoutError, asyncio.CancelledError) as error:
            if not hand.channel.cancelled() and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            self._let_go(hand)
            return {"why": str(error) or "it did not come"}

    def _let_go(self, hand: Hand) -> None:
        """Kill a worker, which leaves its GPU to another."""
        hand.slot = None
        self.hands.pop(hand.token, None)
        kill(hand.process.pid)


def kill(process: int | None) -> None:
    """Kill a process that may be gone, or stopped."""
    if process is not None:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            return


def starving(process: int, silence_seconds: float, silent_seconds: float) -> bool:
    """Return whether a process of this machine that has said nothing for `silent_seconds`, longer than the usual
    `silence_seconds`, may only lack a processor: it is not stopped, as far as the system tells."""
    if silent_seconds > STARVED * silence_seconds:
        return False
    try:
        after_name = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except OSError:
        return sys.platform != "linux"
    return after_name.split()[0] not in STOPPED


def _work(host: str, port: int, token: int, settings: Settings, secret: bytes) -> None:
    """Begin as a worker; this module does not need PyTorch, the process it runs in has it."""
    from shardwright.runtime.recovery.worker import work

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the keeper decides
        signal.signal(number, signal.SIG_IGN)
    work(host, port, token, settings, secret)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"
