"""Talking to others: requests and replies over a channel, calls of services that may never answer, and work in the
background. No PyTorch.

A channel is one connection with requests in both directions. A frame is the length of its header (4 bytes), that of its
payload (8), the header as JSON, the payload as bytes. A request has an id and an `op`, a reply the id as `to`, and an
`error` where the other side's handler raised. Heartbeats are frames too: silence is a loss.

Before the first frame both sides show that they have the secret of the run, and do not send it: each sends a random
challenge, and answers both challenges with their HMAC-SHA256 under the secret, the caller first. What follows is not
encrypted, and not signed."""

from __future__ import annotations

import asyncio
import errno
import json
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from hmac import compare_digest, digest
from itertools import count
from secrets import token_bytes
from typing import Any, TypeVar

from shardwright.errors import bad
from shardwright.records import record

Message = dict[str, Any]
Payload = bytes | bytearray | memoryview
Reply = tuple[Message, Payload]
Handler = Callable[[Message, bytes], Awaitable[Reply]]
Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
FRAME = struct.Struct(">IQ")
LARGEST_HEADER_BYTES, LARGEST_PAYLOAD_BYTES = 1 << 28, 1 << 31
BEAT = "beat"
CHALLENGE_BYTES, GREETING_SECONDS, MOST_STRANGERS = 32, 10.0, 100
CALLER, LISTENER = b"caller", b"listener"


class LostError(ConnectionError):
    """The other side has gone, or fell silent."""


class StrangerError(LostError):
    """The other side has another secret."""


class RefusedError(RuntimeError):
    """The other side could not do what it was asked; the message is its own."""


class Channel:
    """One connection. `on_lost` is called once when it is over, with the reason; `heard` is when a frame last came."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handler: Handler,
        on_lost: Callable[[Channel, str], None] = lambda _channel, _reason: None,
    ) -> None:
        self._reader, self._writer, self._handler, self.on_lost = reader, writer, handler, on_lost
        self._numbers, self._waiting = count(), dict[int, asyncio.Future[Reply]]()
        self._tasks: set[asyncio.Task[None]] = set()
        self.over, self.heard = False, time.monotonic()
        self._keep(self._read())

    async def call(self, op: str, payload: Payload = b"", *, timeout: float | None = None, **fields: Any) -> Reply:
        """Return the reply to a request. Raises LostError where the other side goes, falls silent or takes longer than
        `timeout` seconds, RefusedError where it says so."""
        number = next(self._numbers)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._write({"id": number, "op": op} | fields, payload)
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise LostError(f"no reply to {op} for {timeout:g} s") from None
        finally:
            self._waiting.pop(number, None)

    async def tell(self, op: str, **fields: Any) -> None:
        """Send a request that has no reply; nothing happens where the other side is gone."""
        with suppress(LostError):
            await self._write({"op": op} | fields, b"")

    def close(self, reason: str = "closed") -> None:
        """End the connection at once."""
        if self.over:
            return
        self.over = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LostError(reason))
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        with suppress(OSError, RuntimeError):
            self._writer.transport.abort()
        self.on_lost(self, reason)

    def watch(
        self, beat_seconds: float, silence_seconds: float, excused: Callable[[float], bool] = lambda _seconds: False
    ) -> None:
        """Send heartbeats, and end the connection where none comes for so long; `excused` says of a longer silence that
        the other side lives."""
        self._keep(self._heartbeats(beat_seconds, silence_seconds, excused))

    async def _heartbeats(self, beat_seconds: float, silence_seconds: float, excused: Callable[[float], bool]) -> None:
        self.heard = time.monotonic()
        while True:
            await self.tell(BEAT)
            before = time.monotonic()
            await asyncio.sleep(beat_seconds)
            late = time.monotonic() - before - beat_seconds
            if late > silence_seconds / 2:  # this process itself was stopped, or starved
                self.heard += late
            silent = time.monotonic() - self.heard
            if silent > silence_seconds and not excused(silent):
                self.close(f"silent for {silent:.1f} s")
                return  # closing cancels every task but the one that closes

    async def _read(self) -> None:
        reason = "the connection was closed"
        try:
            while True:
                header, size = FRAME.unpack(await self._reader.readexactly(FRAME.size))
                if header > LARGEST_HEADER_BYTES or size > LARGEST_PAYLOAD_BYTES:
                    raise ValueError("no frame of this protocol")
                message = json.loads(await self._reader.readexactly(header))
                payload = await self._reader.readexactly(size)
                self.heard = time.monotonic()
                self._take(message, payload)
        except (OSError, asyncio.IncompleteReadError):
            pass
        except (ValueError, TypeError, KeyError) as error:
            reason = f"sent what cannot be read: {error}"
        self.close(reason)

    def _take(self, message: Message, payload: bytes) -> None:
        if "to" not in message:
            if message["op"] != BEAT:
                self._keep(self._answer(message, payload))
            return
        future = self._waiting.get(message["to"])
        if future is not None and not future.done():
            if "error" in message:
                future.set_exception(RefusedError(message["error"]))
            else:
                future.set_result((message, payload))

    async def _answer(self, message: Message, payload: bytes) -> None:
        number = message.get("id")
        try:
            reply, content = await self._handler(message, payload)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the other side decides what follows
            reply, content = {"error": f"{type(error).__name__}: {error}"}, b""
            if number is None:
                print(f"{message['op']} failed: {reply['error']}", file=sys.stderr, flush=True)
        if number is not None:
            with suppress(LostError):
                await self._write(reply | {"to": number}, content)

    async def _write(self, header: Message, payload: Payload) -> None:
        if self.over:
            raise LostError("the connection is over")
        text = json.dumps(header).encode()
        try:
            self._writer.write(FRAME.pack(len(text), len(payload)) + text)
            if len(payload):
                self._writer.write(payload)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise LostError(str(error)) from None

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def connect(host: str, port: int, handler: Handler, *, secret: bytes, timeout: float, **options: Any) -> Channel:
    """Return a channel to a listening process. Raises LostError where there is none within `timeout` seconds,
    StrangerError where it has another secret."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                known = await _greets(reader, writer, secret)
            except BaseException:
                writer.transport.abort()
                raise
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise LostError(f"{host}:{port} cannot be reached: {error or 'no answer'}") from None
    if not known:
        writer.transport.abort()
        raise StrangerError(f"{host}:{port} has another secret than this machine")
    return Channel(reader, writer, handler, **options)


async def answer_of(address: tuple[str, int], what: str, *, secret: bytes, timeout: float, **fields: Any) -> Message:
    """Return what a listening process replies to one call, by a channel for it alone. Raises as `connect` and the call
    do."""
    channel = await connect(*address, refuse, secret=secret, timeout=timeout)
    try:
        reply, _ = await channel.call(what, timeout=timeout, **fields)
        return reply
    finally:
        channel.close()


async def listen(host: str, port: int, accept: Accept, *, secret: bytes) -> asyncio.Server:
    """Listen, and give every connection that has the secret to `accept`. Of others the first of each host is told.
    Raises SpecError for an address that is taken or not this host's."""
    strangers: set[str] = set()

    async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                known = await _is_greeted(reader, writer, secret)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):  # somebody who only looks whether we listen
            return writer.transport.abort()
        except BaseException:
            writer.transport.abort()
            raise
        if known:
            return accept(reader, writer)
        caller = str((writer.get_extra_info("peername") or ["somebody"])[0])
        if caller not in strangers and len(strangers) < MOST_STRANGERS:
            strangers.add(caller)
            print(f"{caller} was refused: it has not the secret of this run", file=sys.stderr, flush=True)
        return writer.close()

    try:
        return await asyncio.start_server(greeted, host, port)
    except OSError as error:
        reason = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be listened at: {error.strerror}"
        raise bad(f"`listen={host}:{port}`", reason, "name a free port, at an address of this host") from None


async def _greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> bool:
    """Greet a listener, and return whether it has the secret too."""
    mine = token_bytes(CHALLENGE_BYTES)
    writer.write(mine)
    both = mine + await reader.readexactly(CHALLENGE_BYTES)
    writer.write(_proof(secret, CALLER, both))
    return compare_digest(await reader.readexactly(CHALLENGE_BYTES), _proof(secret, LISTENER, both))


async def _is_greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> bool:
    """Return whether a caller has the secret; only then it is shown that this side has it."""
    mine = token_bytes(CHALLENGE_BYTES)
    writer.write(mine)
    both = await reader.readexactly(CHALLENGE_BYTES) + mine
    known = compare_digest(await reader.readexactly(CHALLENGE_BYTES), _proof(secret, CALLER, both))
    writer.write(_proof(secret, LISTENER, both) if known else bytes(CHALLENGE_BYTES))
    await writer.drain()
    return known


def _proof(secret: bytes, side: bytes, challenges: bytes) -> bytes:
    return digest(secret, side + challenges, "sha256")


async def refuses(host: str, port: int, seconds: float = 1.0) -> bool:
    """Return whether a host answers that nobody listens there. A host that does not answer may be cut off."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), seconds)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


async def refuse(message: Message, _payload: bytes) -> Reply:
    """Answer every request with a refusal: the handler of those that only ask."""
    raise RefusedError(f"{message['op']} is not answered here")


Result = TypeVar("Result")
ANSWER_SECONDS = 60.0  # so long a service has for an answer, or for a block of what it is sent
MOST = 64  # so many calls a service may leave without an answer: each has its thread


@dataclass(slots=True, kw_only=True)
class Pulse:
    """When (monotonic) a call last made progress; calling it says that it does."""

    seen: float = field(default_factory=time.monotonic)

    def __call__(self) -> None:
        self.seen = time.monotonic()


async def answered(
    of: str, call: Callable[[], Result], *, seconds: float = ANSWER_SECONDS, pulse: Pulse | None = None
) -> Result:
    """Return what a call of a service returns, made on a thread of its own. Raises OSError where nothing has come of it
    for so many seconds, counted from the last beat of its pulse; its thread is left behind, and holds up no exit."""
    if sum(thread.name == of for thread in threading.enumerate()) >= MOST:
        raise OSError(f"{of} has left {MOST} calls without an answer")
    alive, future = pulse or Pulse(), Future[Result]()
    threading.Thread(target=_run, args=(call, future), name=of, daemon=True).start()
    answer = asyncio.wrap_future(future)
    try:
        while not answer.done():
            left = alive.seen + seconds - time.monotonic()
            if left <= 0.0:
                raise OSError(f"{of} has not answered for {seconds:g} s")
            await asyncio.wait([answer], timeout=left)
        return answer.result()
    finally:
        answer.cancel()


def _run(call: Callable[[], Result], future: Future[Result]) -> None:
    future.set_running_or_notify_cancel()
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


@record
class BackgroundTasks:
    """Tasks that nobody waits for; `what` they do is said where one fails."""

    what: str
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._over)

    async def finished(self) -> None:
        """Wait for those that are under way."""
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _over(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            print(f"{self.what} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
