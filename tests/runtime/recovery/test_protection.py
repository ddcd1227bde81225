"""Steps on their way to the slower tiers. The object store is played."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

from tests.runtime.recovery.fleet import copies, settings_in

from shardwright.recovery.quorum import Generation, Machine
from shardwright.runtime.job.course import identity_of
from shardwright.runtime.recovery.keeper.protection import Protection
from shardwright.runtime.recovery.keeper.worker_pool import WorkerPool
from shardwright.runtime.recovery.keeper.worker_requests import WorkerRequests
from shardwright.runtime.recovery.run import GenerationBase, GenerationPromise, KeeperOptions
from shardwright.runtime.recovery.state.cloud import Cloud
from shardwright.runtime.recovery.state.snapshots import Snapshot, Snapshots


class Slow:
    """An object store that takes a step only when it is let."""

    what = "the object store"

    def __init__(self) -> None:
        self.may, self.taken = threading.Semaphore(0), list[int]()

    def put_part(self, name: str, *_: object) -> tuple[()]:
        self.may.acquire()
        self.taken.append(int(name[len("step-") :][:8]))
        return ()


def test_the_newest_step_is_uploaded_as_soon_as_the_store_is_done_with_another(tmp_path: Path, capsys: Any) -> None:
    """Else the store would be an interval further behind than it has to be, with all that is lost from there."""

    async def play() -> None:
        slow = Slow()
        snapshots, protection = protection_with(tmp_path, slow)
        for step in (10, 20, 30, 40):
            snapshots.done(Snapshot(file=f"{step}.bin", step=step, generation=1, origin="", pieces=()))
        for step in (10, 20, 30):
            await protection.commit({"step": step})
            await asyncio.sleep(0)
        slow.may.release(2)
        while slow.taken != [10, 30]:
            await asyncio.sleep(0.01)
        slow.may.release()
        await protection.commit({"step": 40})
        while slow.taken != [10, 30, 40]:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(play(), 60.0))
    assert capsys.readouterr().err.startswith("step 20 of m0 is in memory alone: step 10 is still on its way\n")


def protection_with(folder: Path, slow: Slow) -> tuple[Snapshots, Protection]:
    machine = Machine(name="m0", host="h", port=1, gpu="A", gpus=1)
    options = KeeperOptions(
        machine=machine,
        join=(),
        plan=copies(3),
        settings=settings_in(folder),
        memory=folder / "memory",
    )
    run = identity_of(options.plan, options.settings)
    snapshots = Snapshots(options.memory, "m0", run.name)

    async def tell(_op: str, **_fields: object) -> None:
        return

    from_workers = WorkerRequests(options, snapshots, cast(WorkerPool, None), tell)
    promise = GenerationPromise(
        base=GenerationBase(generation=Generation(number=1, machines=(machine,)), plan=options.plan)
    )
    protection = Protection(options, run, snapshots, from_workers, promise)
    protection.cloud = cast(Cloud, slow)
    return snapshots, protection
