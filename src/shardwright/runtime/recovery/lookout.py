"""What the machines that answer say of themselves (`recovery.leadership`). No PyTorch."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from shardwright.recovery.leadership import Standing
from shardwright.recovery.quorum import Address
from shardwright.runtime.recovery.channel import StrangerError, connect, refuse
from shardwright.runtime.recovery.rows import standing_of


async def look_around(
    mine: Standing, addresses: Collection[Address], seconds: float, secret: bytes = b""
) -> list[Standing]:
    """Return the standing of this machine and of all that answer within so many seconds, at these addresses and where
    they say that their coordinators are. They hear where this machine's is. Raises StrangerError where all who answer
    have another secret, and this machine is of no generation yet: one of them is wrong."""
    found, asked, asking = [mine], {mine.address}, set(addresses) - {mine.address}
    strangers: list[StrangerError] = []
    while asking:
        calls = (_standing_at(address, mine, seconds, secret) for address in sorted(asking))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        here = [answer for answer in answers if isinstance(answer, Standing)]
        strangers += [answer for answer in answers if isinstance(answer, StrangerError)]
        found, asked = found + here, asked | asking
        asking = {standing.leader for standing in here if standing.leader is not None} - asked
    if strangers and len(found) == 1 and not mine.generation.machines:
        raise strangers[0]
    return found


async def _standing_at(address: Address, mine: Standing, seconds: float, secret: bytes) -> Standing:
    """Return what a machine says of itself. Raises LostError, or what else keeps it from being understood."""
    channel = await connect(*address, refuse, secret=secret, timeout=seconds)
    try:
        reply, _ = await channel.call("standing", timeout=seconds, leader=mine.leader)
        return standing_of(reply)
    finally:
        channel.close()
