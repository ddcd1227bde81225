"""Waiting for the machines with which a coordinator can go on, or begin. No PyTorch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from shardwright.recovery.quorum import Address, Generation
from shardwright.recovery.seats import fits
from shardwright.runtime.recovery.arbiter import MinorityError
from shardwright.runtime.recovery.cloud import Cloud
from shardwright.runtime.recovery.members import Members
from shardwright.runtime.recovery.options import KeeperOptions
from shardwright.runtime.recovery.patience import answered

GATHERING = 2.0
"""Times the silence after which a machine is lost: for so long a new coordinator waits for those of the generation."""


async def regathered(
    options: KeeperOptions, before: Generation, here: Collection[Address], members: Members, changed: asyncio.Event
) -> None:
    """Wait for the machines of a generation that answered at their addresses; `changed` is set when one has come."""
    expected = {machine.name for machine in before.machines if machine.address in here}
    end = time.monotonic() + GATHERING * options.silence_seconds
    while not expected <= members.by_name.keys() and time.monotonic() < end:
        await _until(changed, end)


async def gathered(options: KeeperOptions, members: Members, changed: asyncio.Event, cloud: Cloud | None) -> None:
    """Wait for as many machines as the first plan needs. Raises MinorityError where fewer have come in time, and new
    steps in the object store show that others train."""
    stored, end = await _newest(cloud), time.monotonic() + options.wait_seconds
    while not fits(options.plan, members.machines):
        if time.monotonic() > end:
            if await _newest(cloud) != stored:
                raise MinorityError("the object store has new steps of this run; this machine waits for the others")
            return
        await _until(changed, end)


async def _until(changed: asyncio.Event, end: float) -> None:
    changed.clear()
    with_limit = asyncio.wait_for(changed.wait(), max(end - time.monotonic(), 0.01))
    await asyncio.gather(with_limit, return_exceptions=True)


async def _newest(cloud: Cloud | None) -> int:
    """Return the newest step in the object store, -1 where nothing is known of one."""
    if cloud is None:
        return -1
    try:
        return max(await answered(cloud.what, cloud.steps), default=-1)
    except OSError:
        return -1
