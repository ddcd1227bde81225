"""Services that never answer, and files that are larger than memory should be."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.recovery.fleet import Fleet, copies
from tests.runtime.recovery.store import store

from shardwright.runtime.recovery.state import cloud as cloud_module
from shardwright.runtime.recovery.state.cloud import Cloud
from shardwright.runtime.recovery.state.inventory import HeldPiece
from shardwright.runtime.recovery.state.snapshots import Snapshot, hashed, laid_out
from shardwright.runtime.recovery.wire import MOST, Pulse, answered
from shardwright.runtime.state.pieces import StatePiece

MIB = 1 << 20
EXITS = """
import asyncio, sys
from tests.runtime.recovery.store import Remote
from shardwright.runtime.recovery.wire import answered

async def main():
    try:
        await answered("the object store", lambda: Remote().cat_file(sys.argv[1]), seconds=0.2)
    except OSError as error:
        print(error)

asyncio.run(main())
"""


@contextmanager
def silent() -> Iterator[str]:
    """Yield an address at which a socket takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_process_ends_although_a_service_has_never_answered() -> None:
    with silent() as address:
        words = [sys.executable, "-c", EXITS, f"remote://{address}/file"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "the object store has not answered for 0.2 s\n"


def test_a_call_that_makes_progress_has_its_time_again() -> None:
    """And what it returns or raises comes through."""

    async def play() -> None:
        pulse, limit = Pulse(), 0.4

        async def beating() -> None:
            for _ in range(10):
                await asyncio.sleep(limit / 4)
                pulse()

        going, let = asyncio.get_running_loop().create_task(beating()), asyncio.Event()
        going.add_done_callback(lambda _: let.set())
        loop = asyncio.get_running_loop()
        waits = partial(asyncio.run_coroutine_threadsafe, let.wait(), loop)
        assert await answered("a service", lambda: waits().result(), seconds=limit, pulse=pulse)
        with pytest.raises(ZeroDivisionError):
            await answered("a service", lambda: 1 // 0)

    asyncio.run(play())


def test_calls_that_never_return_do_not_gather_without_end() -> None:
    async def play() -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def call() -> bool:
            return asyncio.run_coroutine_threadsafe(over.wait(), loop).result()

        calls = [asyncio.create_task(answered("that service", call)) for _ in range(MOST)]
        await asyncio.sleep(0)
        with pytest.raises(OSError, match=f"that service has left {MOST} calls without an answer"):
            await answered("that service", call)
        over.set()
        assert all(await asyncio.gather(*calls))

    asyncio.run(play())


def test_a_part_is_sent_in_a_few_blocks_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_module, "BLOCK_BYTES", MIB)
    size, count = MIB // 4, 24
    content = np.arange(count * size, dtype=np.float32)
    (tmp_path / "a.bin").write_bytes(content.tobytes())
    pieces = [
        StatePiece(kind="weight", parameter="a", start=0, stop=count * size, low=n * size, high=(n + 1) * size)
        for n in range(count)
    ]
    known = hashed(tmp_path, Snapshot(file="a.bin", step=5, generation=1, origin="", pieces=laid_out(pieces, "a.bin")))
    held = [HeldPiece(machine="m0", tier=0, step=5, generation=1, stored=stored) for stored in known.pieces]
    cloud, name, beats = Cloud(f"file://{tmp_path}/store"), "step-00000005/m0.state", list[int]()
    tracemalloc.start()
    try:
        rows = cloud.put_part(name, tmp_path, held, lambda: beats.append(1))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * MIB, "a third of the part"
    kept = (tmp_path / "store" / name).read_bytes()
    assert hashlib.md5(kept).digest() == hashlib.md5(content.tobytes()).digest()
    assert [row.offset for row in rows] == [n * MIB for n in range(count)]
    assert len(beats) == 2 * count, "sent, and read back"


@pytest.mark.nightly
def test_a_run_ends_although_its_object_store_never_answers(tmp_path: Path) -> None:
    with store() as (server, url), Fleet(tmp_path, copies(1), 40, every=100, extra=["--upload", url]) as fleet:
        fleet.until(lambda: fleet.step() > 0, "a step")
        server.fault = "silent"
        fleet.finish()
        assert "step 40 of machine-0 is not in the object store: the object store has not answered for" in fleet.logs()
