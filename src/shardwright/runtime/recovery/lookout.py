"""What the machines that answer say of themselves (`recovery.leadership`). No PyTorch."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from shardwright.recovery.leadership import Standing
from shardwright.recovery.quorum import Address
from shardwright.runtime.recovery.channel import LostError, RefusedError, StrangerError, connect, refuse
from shardwright.runtime.recovery.rows import standing_of


async def look_around(
    mine: Standing, addresses: Collection[Address], seconds: float, secret: bytes = b""
) -> list[Standing]:
    """Return the standing of this machine and of all that answer within so many seconds, at these addresses and where
    they say that their coordinators are. They hear where this machine's is. Raises StrangerError where one has another
    secret, and this machine is of no generation yet."""
    found, asked, asking = [mine], {mine.address}, set(addresses) - {mine.address}
    while asking:
        answers = await asyncio.gather(*(_standing_at(address, mine, seconds, secret) for address in sorted(asking)))
        here = [one for one in answers if one is not None]
        found, asked = found + here, asked | asking
        asking = {one.leader for one in here if one.leader is not None} - asked
    return found


async def _standing_at(address: Address, mine: Standing, seconds: float, secret: bytes) -> Standing | None:
    try:
        channel = await connect(*address, refuse, secret=secret, timeout=seconds)
    except StrangerError:
        if not mine.generation.machines:
            raise
        return None
    except LostError:
        return None
    try:
        reply, _ = await channel.call("standing", timeout=seconds, leader=mine.leader)
        return standing_of(reply)
    except (LostError, RefusedError, KeyError, TypeError):
        return None
    finally:
        channel.close()
