"""The worker processes of one machine, started from a process that has PyTorch loaded: a new one is there at once."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from shardwright.runtime.job.ending import how_ended
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.recovery.wire import BackgroundTasks, Channel, LostError, Message, RefusedError

# The second is what a backward pass imports when it is first run, in most of a second.
PRELOADED = ["shardwright.runtime.recovery.worker.training", "torch.fx.experimental.symbolic_shapes"]
START_SECONDS = 60.0  # a new worker that has not come by then is given up; those after it have less to load
# Times the silence after which a worker is lost, though it is not stopped: others may have taken its processors.
STARVED = 6.0
STOPPED = ("T", "t", "Z", "X")  # states of a process in Linux' /proc in which it does nothing: stopped, traced, dead


@dataclass(kw_only=True, eq=False)
class WorkerProcess:
    """A worker process. `slot` is the number of its GPU once it is assigned a rank."""

    token: int
    process: Any
    channel: asyncio.Future[Channel]
    slot: int | None = None


@dataclass(kw_only=True)
class WorkerPool:
    """The workers of a machine. `on_gone` is called where one that has a rank dies; `ready` is set once there has been
    one for each GPU, with all that it imports."""

    host: str
    port: int
    secret: bytes
    settings: Settings
    on_gone: Callable[[int, str], None]
    workers: dict[int, WorkerProcess] = field(default_factory=dict)
    tokens: Any = field(default_factory=count)
    gpus: int = 0
    number: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    generation: int = 0
    ending: bool = False
    context: Any = None
    background: BackgroundTasks = field(default_factory=lambda: BackgroundTasks(what="starting a worker"))

    def start(self, gpus: int, spares: int) -> None:
        """Have a worker for each GPU and some to spare from now on."""
        self.gpus, self.number = gpus, gpus + spares
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        for _ in range(self.number):
            self._spawn()
        self._count()

    def arrived(self, token: int, channel: Channel) -> None:
        """Know the connection of a worker. Raises KeyError for a process that is none of ours."""
        worker = self.workers[token]
        channel.on_lost = lambda *_: kill(worker.process.pid)  # dead already, or silent: stopped or stuck
        if not worker.channel.done():
            worker.channel.set_result(channel)
        self._count()

    def _count(self) -> None:
        if sum(worker.channel.done() for worker in self.workers.values()) >= self.gpus:
            self.ready.set()

    def slot_of(self, channel: Channel) -> int | None:
        """Return the GPU of the worker behind a connection."""
        for worker in self.workers.values():
            if worker.channel.done() and not worker.channel.cancelled() and worker.channel.result() is channel:
                return worker.slot
        return None

    async def halt(self, generation: int, seconds: float) -> dict[int, Message]:
        """Return the reports of the workers by GPU; those that give none in time are killed. Nobody is assigned a rank
        of an older generation from now on."""
        self.generation = generation
        assigned = [worker for worker in self.workers.values() if worker.slot is not None]
        answers = await asyncio.gather(*(self._halted(worker, generation, seconds) for worker in assigned))
        return {
            worker.slot: report
            for worker, report in zip(assigned, answers, strict=True)
            if report and worker.slot is not None
        }

    async def settle(self, orders: Mapping[int, Message], seconds: float) -> None:
        """Give workers their orders by GPU."""
        assigned = [worker for worker in self.workers.values() if worker.slot in orders]
        await asyncio.gather(*(self._told(worker, orders[worker.slot or 0], seconds) for worker in assigned))

    async def assign(self, orders: Mapping[int, Message], seconds: float) -> str:
        """Give each GPU its rank, and return why they cannot train, "" once all are ready."""
        for worker in self.workers.values():
            if worker.slot not in orders:
                worker.slot = None
        for slot in orders.keys() - {worker.slot for worker in self.workers.values()}:
            self._fill(slot)
        answers = [asyncio.create_task(self._assigned(slot, order, seconds)) for slot, order in orders.items()]
        try:
            for answer in asyncio.as_completed(answers):
                reply = await answer
                if not reply.get("ready"):  # the others wait for one that will not come, until they are halted
                    return str(reply["why"])
        finally:
            for task in answers:
                task.cancel()
        return ""

    def _fill(self, slot: int) -> None:
        """Have a worker for a GPU: a spare one, or a new one."""
        free = next((worker for worker in self.workers.values() if worker.slot is None), None)
        (free or self._spawn()).slot = slot

    async def _assigned(self, slot: int, order: Message, seconds: float) -> Message:
        """Give a GPU its rank. A worker that is stuck in its communication is of no more use; another one gets it."""
        worker = next((worker for worker in self.workers.values() if worker.slot == slot), None)
        if worker is None or order["generation"] < self.generation:
            return {"why": "it has just died, or works for a newer generation"}
        answer = await self._told(worker, order, seconds)
        if answer.get("stuck"):
            self._discard(worker)
            self._fill(slot)
            return await self._assigned(slot, order, seconds)
        return answer

    def processes(self) -> dict[int, int]:
        """Return the process of each GPU that has a rank."""
        return {worker.slot: worker.process.pid for worker in self.workers.values() if worker.slot is not None}

    async def stop(self) -> None:
        """Ask all workers to stop after their step."""
        for worker in self.workers.values():
            if worker.channel.done():
                await worker.channel.result().tell("stop")

    async def end(self) -> None:
        self.ending = True
        await self.background.finished()
        workers = list(self.workers.values())
        for worker in workers:
            await self._told(worker, {"op": "end"}, 1.0) if worker.channel.done() else None
            kill(worker.process.pid)
        for worker in workers:
            await asyncio.to_thread(worker.process.join, 5.0)

    def _spawn(self) -> WorkerProcess:
        token = next(self.tokens)
        arguments = (self.host, self.port, token, self.settings, self.secret)
        process = self.context.Process(target=_work, args=arguments, daemon=True)
        worker = self.workers[token] = WorkerProcess(
            token=token, process=process, channel=asyncio.get_running_loop().create_future()
        )
        self.background.begin(self._started(worker))
        return worker

    async def _started(self, worker: WorkerProcess) -> None:
        """Start a worker, and hear of its death."""
        try:
            await asyncio.to_thread(worker.process.start)
        except BaseException:
            self.workers.pop(worker.token, None)
            worker.channel.cancel()
            raise
        asyncio.get_running_loop().add_reader(worker.process.sentinel, self._died, worker)

    def _died(self, worker: WorkerProcess) -> None:
        asyncio.get_running_loop().remove_reader(worker.process.sentinel)
        worker.process.join(1.0)
        self.workers.pop(worker.token, None)
        if worker.channel.done():
            worker.channel.result().close("the process ended")
        else:
            worker.channel.cancel()
        if self.ending:
            return
        if len(self.workers) < self.number:
            self._spawn()
        if worker.slot is not None:
            self.on_gone(worker.slot, how_ended(worker.process.exitcode))

    async def _halted(self, worker: WorkerProcess, generation: int, seconds: float) -> Message | None:
        if not worker.channel.done():  # it is only just starting
            worker.slot = None
            return None
        try:
            reply, _ = await worker.channel.result().call("halt", generation=generation, timeout=seconds)
            return dict(reply["report"])
        except (LostError, RefusedError):
            self._discard(worker)
            return None

    async def _told(self, worker: WorkerProcess, order: Message, seconds: float) -> Message:
        try:
            channel = await asyncio.wait_for(asyncio.shield(worker.channel), min(seconds, START_SECONDS))
            fields = {name: value for name, value in order.items() if name != "op"}
            reply, _ = await channel.call(order["op"], timeout=seconds, **fields)
            return reply
        except (LostError, RefusedError, TimeoutError, asyncio.CancelledError) as error:
            if not worker.channel.cancelled() and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            self._discard(worker)
            return {"why": str(error) or "it did not come"}

    def _discard(self, worker: WorkerProcess) -> None:
        """Kill a worker, which leaves its GPU to another."""
        worker.slot = None
        self.workers.pop(worker.token, None)
        kill(worker.process.pid)


def kill(process: int | None) -> None:
    """Kill a process that may be gone, or stopped."""
    if process is not None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


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
    from shardwright.runtime.recovery.worker.training import work

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the keeper decides
        signal.signal(number, signal.SIG_IGN)
    work(host, port, token, settings, secret)
