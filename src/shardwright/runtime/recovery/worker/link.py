"""A worker's connections: a thread that talks to the keeper of its machine while the main thread trains, and what a
machine records of its steps by way of it.

The keeper's requests become orders that the main thread takes one by one; `halt` acts at once, from the thread. The
first rank of each machine tells rows of metrics, which its keeper writes, and points for TensorBoard and Weights &
Biases, each machine into its own `--out`; what each rank prints is in `DIR/generation_3/RANK/stderr.log`. In a
generation that begins at an earlier step than the last one reached, the later rows and points give way.
"""

from __future__ import annotations

import asyncio
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.runtime.job.metrics import Row, about, keep_id, kept_id, new_id, tracked
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.recovery.wire import Channel, LostError, Message, Payload, RefusedError, Reply, connect
from shardwright.runtime.step.engine import Engine
from shardwright.runtime.storage.checkpoint import gathered

KEEPER_GONE = 75  # exit status of a worker whose keeper is gone
CONNECT_SECONDS = 30.0

Tell = Callable[[Row], None]


class OutsideError(RuntimeError):
    """Something that a rank needs and that is not in itself is gone; a recovery may bring it back."""


@dataclass(slots=True, kw_only=True)
class KeeperOrder:
    """A request of the keeper, and where the main thread puts its answer."""

    message: Message
    answer: asyncio.Future[Message]


class KeeperLink:
    """The thread. `interrupt` makes the main thread's blocked communication fail."""

    def __init__(self, host: str, port: int, hello: Message, secret: bytes) -> None:
        self.orders: queue.Queue[KeeperOrder] = queue.Queue()
        self.stopping = threading.Event()
        self.interrupt: Callable[[], None] = lambda: None
        self._address, self._hello, self._secret = (host, port), hello, secret
        self._store: Channel | None = None
        self._ready = threading.Event()
        self._generation, self._newest = 0, 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="link", daemon=True).start()
        self._ready.wait()

    def over(self, generation: int) -> bool:
        return self._newest > generation

    def ask(self, op: str, payload: Payload = b"", **fields: Any) -> Message:
        """Return the keeper's reply. Raises RefusedError where it cannot do it."""
        reply: Message = self._await(self._keeper.call(op, payload, **fields))[0]
        return reply

    def begin(self, op: str, **fields: Any) -> Future[Any]:
        """Ask the keeper, and return where its reply will be."""
        return asyncio.run_coroutine_threadsafe(self._keeper.call(op, **fields), self._loop)

    def tell(self, op: str, **fields: Any) -> None:
        """Say something to the keeper and go on."""
        asyncio.run_coroutine_threadsafe(self._keeper.tell(op, **fields), self._loop)

    def ask_store(self, what: str, payload: Payload = b"", **fields: Any) -> tuple[Message, bytes]:
        """Ask the store of the generation. Raises OutsideError where the generation is over."""
        if self._store is None or self.over(self._generation):
            raise OutsideError("the generation is over")
        try:
            work = self._store.call("store", payload, what=what, generation=self._generation, **fields)
            reply, content = self._await(work)
            return reply, bytes(content)
        except (LostError, RefusedError) as error:
            raise OutsideError(str(error)) from None

    def open_store(self, address: Sequence[Any], generation: int) -> None:
        """Connect to the keeper that holds the store of a generation. Raises OutsideError where it is gone."""
        self._generation = generation
        try:
            self._store = self._await(
                connect(address[0], address[1], self._take, secret=self._secret, timeout=CONNECT_SECONDS)
            )
        except LostError as error:
            raise OutsideError(str(error)) from None

    def answer(self, order: KeeperOrder, **fields: Any) -> None:

        def put() -> None:
            if not order.answer.done():
                order.answer.set_result(fields)

        self._loop.call_soon_threadsafe(put)

    def _await(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.create_task(self._begin())
        self._loop.run_forever()

    async def _begin(self) -> None:
        def gone(_channel: Channel, _reason: str) -> None:
            os._exit(KEEPER_GONE)

        try:
            self._keeper = await connect(
                *self._address, self._take, secret=self._secret, timeout=CONNECT_SECONDS, on_lost=gone
            )
            reply, _ = await self._keeper.call("worker", **self._hello)
        except (LostError, RefusedError):
            os._exit(KEEPER_GONE)
        self._keeper.watch(reply["beat_seconds"], float("inf"))
        self._ready.set()

    async def _take(self, message: Message, _payload: bytes) -> Reply:
        if message["op"] == "stop":
            self.stopping.set()
            return {}, b""
        if message["op"] == "halt":
            self._newest = max(self._newest, message["generation"])
            if self._store is not None:
                self._store.close("the generation is over")
            await self._loop.run_in_executor(None, self.interrupt)
        answer: asyncio.Future[Message] = self._loop.create_future()
        self.orders.put(KeeperOrder(message=message, answer=answer))
        return await answer, b""


@contextmanager
def reporting(link: KeeperLink, message: Message, engine: Engine, settings: Settings) -> Iterator[Tell | None]:
    """Give the function that records a row, None on a rank that records none. Every rank must call it."""
    first = not message["mates"]
    _agree_on_id(engine, settings, first=first)
    if not first:
        yield None
        return
    # one rank to the service, the first of each machine into its folder
    tracking = replace(settings, wandb=settings.wandb if message["rank"] == 0 else "")
    with tracked(tracking, about(engine.layout.plan, settings)) as track:

        def tell(row: Row) -> None:
            link.tell("row", row=asdict(row))
            track(row)

        yield tell


def _agree_on_id(engine: Engine, settings: Settings, *, first: bool) -> None:
    """Have one name of the run at Weights & Biases on all machines, whichever sends: the one that a machine knows."""
    if not settings.wandb:
        return
    known = kept_id(settings.out)
    ids = gathered(engine, (known, new_id()))
    agreed = next((kept for kept, _ in ids if kept), ids[0][1])
    if first and agreed != known:
        keep_id(settings.out, agreed)


STREAMS = {1: "stdout.log", 2: "stderr.log"}
_before: dict[int, int] = {}
_copying: list[subprocess.Popen[bytes]] = []


def keep_log(folder: Path, generation: int, rank: int) -> None:
    """Have all that this process prints from now on in the files of a rank, beside where it went before. The copy is
    made by processes that outlive this one, so that its last words are there too."""
    place = folder / f"generation_{generation}" / str(rank)
    place.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream, name in STREAMS.items():
        before = _before.setdefault(stream, os.dup(stream))
        copying = subprocess.Popen(
            ["tee", "-a", str(place / name)], stdin=subprocess.PIPE, stdout=before, start_new_session=True
        )
        assert copying.stdin is not None, "it is a pipe"
        os.dup2(copying.stdin.fileno(), stream)
        copying.stdin.close()
        _copying.append(copying)
    _copying[:] = [copying for copying in _copying if copying.poll() is None]
