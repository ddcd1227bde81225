"""The workers of a machine, between two generations. They are played."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardwright.runtime.job.settings import Settings
from shardwright.runtime.recovery.keeper.worker_pool import PRELOADED, WorkerPool, WorkerProcess, starving
from shardwright.runtime.recovery.wire import Channel, Message, Reply


class Answering:
    """A connection to a worker that has one answer for all orders."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer

    async def call(self, _op: str, **_: object) -> Reply:
        return self.answer, b""


def pool_of(*answers: Message | None) -> WorkerPool:
    """Return workers, the first of which has GPU 0; None for one that has not come yet."""
    pool = WorkerPool(host="h", port=1, secret=b"", settings=cast(Settings, None), on_gone=lambda *_: None)
    for token, answer in enumerate(answers):
        channel: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        if answer is not None:
            channel.set_result(cast(Channel, Answering(**answer)))
        process = SimpleNamespace(pid=None)
        pool.workers[token] = WorkerProcess(token=token, process=process, channel=channel, slot=None if token else 0)
    return pool


def test_a_worker_that_has_only_just_been_hired_holds_up_no_halt() -> None:
    """Its machine came, and another one was lost before it could begin."""

    async def play() -> None:
        pool = pool_of(None)
        assert await pool.halt(2, 5.0) == {}
        assert pool.workers[0].slot is None, "it is free for the next generation"

    asyncio.run(play())


def test_a_worker_that_is_stuck_leaves_its_gpu_to_a_spare_one() -> None:
    async def play() -> None:
        pool = pool_of({"stuck": True}, {"ready": True})
        assert not await pool.assign({0: {"op": "assign", "generation": 2}}, 5.0)
        assert [worker.token for worker in pool.workers.values() if worker.slot == 0] == [1]

    asyncio.run(play())


def test_a_generation_that_is_over_takes_no_worker_from_a_newer_one() -> None:
    """Its start goes on while a newer one begins: the worker that it waits for is no more stuck than it should be."""

    async def play() -> None:
        pool = pool_of({"stuck": True}, {"ready": True})
        pool.workers[0].slot = None
        await pool.halt(3, 5.0)
        pool.workers[0].slot = 0
        assert "newer generation" in await pool.assign({0: {"op": "assign", "generation": 2}}, 5.0)
        assert pool.workers[0].slot == 0

    asyncio.run(play())


def test_a_worker_that_cannot_be_started_is_none() -> None:
    class Failing:
        pid = None

        def start(self) -> None:
            raise OSError("no more processes")

    async def play() -> None:
        pool = pool_of()
        pool.context = SimpleNamespace(Process=lambda **_: Failing())
        assert await pool.assign({0: {"op": "assign", "generation": 1}}, 5.0) == "it did not come"
        assert not pool.workers

    asyncio.run(play())


@pytest.mark.skipif(sys.platform != "linux", reason="states of processes are read from /proc")
def test_a_silent_worker_is_lost_at_once_where_it_is_stopped_and_later_where_it_is_starved() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert starving(process.pid, 5.0, 6.0) and not starving(process.pid, 5.0, 31.0)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert not starving(process.pid, 5.0, 6.0)
        process.kill()
    assert not starving(process.pid, 5.0, 6.0), "it is gone"


def test_what_workers_have_loaded_before_they_start_is_there() -> None:
    """The process they are started from passes over modules that it cannot find, and each worker loads PyTorch anew."""
    assert all(importlib.util.find_spec(name) for name in PRELOADED)
