"""What a keeper answers its workers and other keepers: snapshots taken in, pieces given out, and the keys and values by
which the process groups of a generation find each other. No PyTorch."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from shardwright.errors import SpecError
from shardwright.recovery.transfer import DISK, MEMORY
from shardwright.runtime.job import metrics
from shardwright.runtime.recovery.keeper.worker_pool import WorkerPool, starving
from shardwright.runtime.recovery.run import KeeperOptions
from shardwright.runtime.recovery.state.inventory import pieces_of
from shardwright.runtime.recovery.state.snapshots import Snapshot, Snapshots, hashed
from shardwright.runtime.recovery.wire import Channel, Message, RefusedError, Reply

# So long all machines have for a step: to hash what their workers wrote, and to copy what nobody else holds.
COMMIT_SECONDS = 90.0
LARGEST_RANGE_BYTES = 1 << 30

# What a worker says and a coordinator hears, under which name, with which fields.
TOLD = {
    "finished here": ("finished", ("step", "generation", "stopped")),
    "stuck here": ("stuck", ("reason", "generation")),
    "pace here": ("pace", ("seconds", "work", "generation")),
    "bad input here": ("bad input", ("reason",)),
    "failed here": ("failed", ("reason",)),
}


class WorkerRequests:
    """Answers workers and other keepers."""

    ANSWERS = frozenset(
        (
            "worker",
            "snapshot",
            "handed over",
            "protected",
            "row",
            "unprotected",
            "piece",
            "store",
            *TOLD,
        )
    )

    def __init__(
        self, options: KeeperOptions, snapshots: Snapshots, pool: WorkerPool, tell: Callable[..., Awaitable[None]]
    ) -> None:
        self._options, self._snapshots, self._pool, self.tell = options, snapshots, pool, tell
        self.values: dict[int, Values] = {}
        self.writers, self.complete, self._late = 0, -1, -1
        self._handed: dict[int, set[str]] = {}
        self._hashing: set[str] = set()
        self.protect: Callable[[int], Awaitable[None]] | None = None

    async def answer(self, channel: Channel, message: Message, payload: bytes) -> Reply:
        match message["op"]:
            case "worker":
                self._pool.arrived(message["token"], channel)
                starved = partial(starving, message["process"], self._options.silence_seconds)
                channel.watch(self._options.beat_seconds, self._options.silence_seconds, starved)
                return {"beat_seconds": self._options.beat_seconds}, b""
            case "snapshot":
                return {"file": await self._begin(message)}, b""
            case "handed over":
                await self._done(message)
            case "protected":
                await self._protected(message["step"])
            case "piece":
                return {}, await asyncio.to_thread(self.piece, message)
            case "store":
                values = self.values.get(message["generation"])
                if values is None:
                    raise RefusedError("the generation is over")
                return await values.answer(message, payload)
            case "row":
                metrics.append(self._options.settings.out / metrics.FILE, metrics.Row(**message["row"]))
            case "unprotected":
                print(f"step {message['step']} is not protected: {message['reason']}", file=sys.stderr, flush=True)
            case op:
                await self._passed_on(op, channel, message)
        return {}, b""

    async def _passed_on(self, op: str, channel: Channel, message: Message) -> None:
        """Tell the coordinator what a worker says, with its GPU."""
        what, fields = TOLD[op]
        await self.tell(what, slot=self._pool.slot_of(channel), **{name: message[name] for name in fields})

    async def _begin(self, message: Message) -> str:
        """Return the file that a worker may write."""
        async with self._snapshots.changed:  # what is being hashed is not written over
            await self._snapshots.changed.wait_for(lambda: message["writer"] not in self._hashing)
        return self._snapshots.begin(message["writer"], message["generation"])

    async def _protected(self, step: int) -> None:
        """Wait until all machines have a step, or the generation is over. Where a machine is late, nobody waits any
        more until they have one again: the newest step that all have stays."""
        if self._late > self._snapshots.committed:
            return
        try:
            async with asyncio.timeout(COMMIT_SECONDS), self._snapshots.changed:
                await self._snapshots.changed.wait_for(
                    lambda: self._snapshots.committed >= step or step not in self._handed
                )
        except TimeoutError:
            self._late = step
            words = f"not all machines have it after {COMMIT_SECONDS:g} s; step {self._snapshots.committed} stays"
            print(f"step {step} is not protected: {words}", file=sys.stderr, flush=True)

    async def _done(self, message: Message) -> None:
        """Take a written file in; when the machine has all of a step, protect it and tell the coordinator."""
        step, writer, file = message["step"], message["writer"], message["file"]
        pieces = pieces_of(message["rows"], file)
        snapshot = Snapshot(
            file=file, step=step, generation=message["generation"], origin="", pieces=pieces, scale=message["scale"]
        )
        writers = self._handed.setdefault(step, set())
        await self._hashed(writer, snapshot)
        writers.add(writer)
        if len(writers) == self.writers and self.protect is not None:
            self.complete = step
            await self.protect(step)
            for old in [number for number in self._handed if number < step]:
                del self._handed[old]
            await self.tell("held", step=step, generation=message["generation"])

    async def _hashed(self, writer: str, snapshot: Snapshot) -> None:
        """Know a snapshot with its hashes. Raises RefusedError where it is not worth keeping, or cannot be read."""
        self._hashing.add(writer)
        try:
            self._snapshots.done(await asyncio.to_thread(hashed, self._snapshots.folder, snapshot))
        except (SpecError, OSError) as error:
            print(f"step {snapshot.step} is not protected: {error}", file=sys.stderr, flush=True)
            raise RefusedError(str(error)) from None
        finally:
            async with self._snapshots.changed:
                self._hashing.discard(writer)
                self._snapshots.changed.notify_all()

    async def release(self) -> None:
        """Let workers go that wait for a step to be one that all machines have: the generation is over, and they have
        said where they are, after which they hand nothing over."""
        self._handed.clear()
        async with self._snapshots.changed:
            self._snapshots.changed.notify_all()

    def begin_generation(self, writers: int) -> None:
        """Expect so many writers from now on."""
        self.writers, self._late = writers, -1
        self._handed.clear()

    def piece(self, message: Message) -> bytes:
        """Return a range of a file in memory or on disk."""
        folder = {MEMORY: self._options.memory, DISK: self._options.disk}[message["tier"]]
        start, stop = message["start"], message["stop"]
        if folder is None or not 0 <= stop - start <= LARGEST_RANGE_BYTES:
            raise RefusedError("no such range")
        path = inside(folder, message["file"])
        with path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), stop - start, start)


def inside(folder: Path, name: str) -> Path:
    """Return a file of a folder. Raises RefusedError for a name that leads elsewhere."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise RefusedError(f"{name} is in no folder of this keeper")
    return path


class Values:
    """Keys and values. Waiters end with the generation: `close` raises in all of them."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = asyncio.Condition()
        self._closed = False

    async def answer(self, message: Message, payload: bytes) -> tuple[Message, bytes]:
        """Answer `set`, `get`, `add`, `check`, `wait` and `compare_set`, as torch's stores mean them. Raises
        TimeoutError where a key does not come within the message's `seconds`."""
        key = message.get("key", "")
        match message["what"]:
            case "set":
                await self._set(key, payload)
            case "get":
                await self._wait([key], message["seconds"])
                return {}, self._values[key]
            case "wait":
                await self._wait(message["keys"], message["seconds"])
            case "check":
                return {"value": all(name in self._values for name in message["keys"])}, b""
            case "add":
                total = int(self._values.get(key, b"0")) + message["amount"]
                await self._set(key, str(total).encode())
                return {"value": total}, b""
            case "compare_set":
                expected, wanted = base64.b64decode(message["expected"]), payload
                now = self._values.get(key)
                if now == expected or (now is None and not expected):
                    await self._set(key, wanted)
                return {}, self._values.get(key, expected)
        return {}, b""

    async def close(self) -> None:
        """End all waiting: the generation is over."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def _set(self, key: str, value: bytes) -> None:
        async with self._changed:
            self._values[key] = bytes(value)
            self._changed.notify_all()

    async def _wait(self, keys: list[str], seconds: float) -> None:
        async with self._changed, asyncio.timeout(seconds):
            await self._changed.wait_for(lambda: self._closed or all(key in self._values for key in keys))
        if self._closed:
            raise TimeoutError("the generation is over")
