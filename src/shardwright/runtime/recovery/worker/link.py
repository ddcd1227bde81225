"""A worker's connections: a thread that talks to the keeper of its machine while the main thread trains.

The keeper's requests become orders that the main thread takes one by one; `halt` acts at once, from the thread.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from shardwright.runtime.recovery.wire import Channel, LostError, Message, Payload, RefusedError, Reply, connect

KEEPER_GONE = 75  # exit status of a worker whose keeper is gone
CONNECT_SECONDS = 30.0


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
        """Return whether a generation is over."""
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
        """Answer an order."""

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
