"""Reading pieces from where a transfer plan says: other keepers, this machine's disk, the object store. No PyTorch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.recovery.transfer import CLOUD, DISK
from shardwright.runtime.recovery.channel import Channel, LostError, RefusedError, connect, refuse
from shardwright.runtime.recovery.snapshots import is_sound, reserve
from shardwright.runtime.state.pieces import StoredPiece

UNSOUND = "its content is not what was written"
AT_A_TIME = 8
RANGE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceSource:
    """Bytes [start, stop) of a piece, in a file of a tier of a machine, where the piece begins at `offset`. `address`
    is that of its keeper, None for this machine and for the cloud."""

    machine: str
    address: tuple[str, int] | None
    tier: int
    file: str
    offset: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A piece as it shall lie in the file of fetched ones, and where its bytes come from."""

    stored: StoredPiece
    sources: tuple[PieceSource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The pieces that arrived as they were written, and those that did not, with the machines that were to send them
    and why."""

    pieces: tuple[StoredPiece, ...]
    failed: tuple[tuple[StoredPiece, tuple[str, ...], str], ...]


Reader = Callable[[PieceSource], Awaitable[bytes]]


async def fetch(
    wanted: Sequence[Wanted], folder: Path, file: str, readers: dict[int, Reader], secret: bytes = b""
) -> Fetched:
    """Read all pieces into one file, and verify each. `readers` read ranges from this machine's disk and the cloud, by
    tier. Raises OSError where this machine has no room."""
    size = max((item.stored.offset + item.stored.bytes for item in wanted), default=0)
    await asyncio.to_thread(reserve, folder / file, size)
    peers = Peers(secret)
    room = asyncio.Semaphore(AT_A_TIME)
    try:
        reasons = await asyncio.gather(*(_arrived(item, folder / file, readers, peers, room) for item in wanted))
    finally:
        peers.close()
    pairs = list(zip(wanted, reasons, strict=True))
    return Fetched(
        pieces=tuple(item.stored for item, reason in pairs if not reason),
        failed=tuple(
            (item.stored, tuple(source.machine for source in item.sources), reason) for item, reason in pairs if reason
        ),
    )


class Peers:
    """Connections to other keepers, one each, made when they are needed."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._channels: dict[tuple[str, int], asyncio.Task[Channel]] = {}

    async def read(self, source: PieceSource) -> bytes:
        """Return a range from another machine. Raises LostError or RefusedError where it cannot be had."""
        assert source.address is not None, "own files are read without a connection"
        task = self._channels.get(source.address)
        if task is None:
            task = asyncio.create_task(connect(*source.address, refuse, secret=self._secret, timeout=5.0))
            self._channels[source.address] = task
        channel = await task
        start, stop = source.offset + source.start, source.offset + source.stop
        _, content = await channel.call("piece", tier=source.tier, file=source.file, start=start, stop=stop)
        return bytes(content)

    def close(self) -> None:
        for task in self._channels.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            task.cancel()


async def _arrived(item: Wanted, path: Path, readers: dict[int, Reader], peers: Peers, room: asyncio.Semaphore) -> str:
    """Return why a piece has not arrived, "" if it has."""
    try:
        for source in item.sources:
            local = source.tier == CLOUD or (source.address is None and source.tier == DISK)
            async with room, asyncio.timeout(RANGE_SECONDS):
                content = await (readers[source.tier] if local else peers.read)(source)
            if len(content) != source.stop - source.start:
                return f"{UNSOUND}: {len(content):,} bytes of {source.stop - source.start:,} came"
            await asyncio.to_thread(_put, path, content, item.stored.offset + source.start)
    except TimeoutError:
        return f"it did not come within {RANGE_SECONDS:g} s"
    except (LostError, RefusedError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "" if await asyncio.to_thread(is_sound, path.parent, item.stored) else UNSOUND


def _put(path: Path, content: bytes, offset: int) -> None:
    """Write into a file. A thread that outlives its fetch has a descriptor of its own."""
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), content, offset)
