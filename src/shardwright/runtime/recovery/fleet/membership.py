"""The machines of a run: what those say of themselves that answer (`recovery.quorum`), those that have joined the
coordinator and what all of them are asked at once, and waiting for enough of them. No PyTorch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, field, replace
from typing import Any

from shardwright.records import record
from shardwright.recovery.quorum import Address, Generation, Machine, Standing, fits
from shardwright.runtime.recovery.fleet.claims import MinorityError
from shardwright.runtime.recovery.run import KeeperOptions
from shardwright.runtime.recovery.state.cloud import Cloud
from shardwright.runtime.recovery.wire import (
    Channel,
    LostError,
    Message,
    StrangerError,
    answer_of,
    answered,
)


class BeginAgainError(Exception):
    """A recovery must begin anew; the message says why."""


@record
class Member:
    """A machine that has joined, the connection to it, and whether its workers have started."""

    machine: Machine
    channel: Channel
    ready: bool = True


@record
class Members:
    """Who is there, by name."""

    by_name: dict[str, Member] = field(default_factory=dict)

    @property
    def machines(self) -> list[Machine]:
        return [member.machine for member in self.by_name.values()]

    @property
    def addresses(self) -> frozenset[Address]:
        return frozenset(machine.address for machine in self.machines)

    def name_of(self, channel: Channel) -> str:
        """Return whose connection this is, "" if nobody's."""
        return next((name for name, member in self.by_name.items() if member.channel is channel), "")

    @property
    def starting(self) -> frozenset[str]:
        """The machines whose workers have not started yet."""
        return frozenset(name for name, member in self.by_name.items() if not member.ready)

    def put(self, machine: Machine, channel: Channel, *, ready: bool) -> None:
        """Take a machine in, in place of what it was before."""
        old = self.by_name.pop(machine.name, None)
        self.by_name[machine.name] = Member(machine=machine, channel=channel, ready=ready)
        if old is not None and old.channel is not channel:
            old.channel.close("it joined again")

    def change(self, name: str, **changes: Any) -> None:
        """Know something else of a machine, if it is still there."""
        if name in self.by_name:
            self.by_name[name] = replace(self.by_name[name], **changes)

    def named(self, names: Collection[str]) -> list[Machine]:
        """Return machines by their names. Raises LostError where one is not there any more."""
        lost = [name for name in names if name not in self.by_name]
        if lost:
            raise LostError(f"{lost[0]} is lost")
        return [self.by_name[name].machine for name in names]

    def close(self, reason: str) -> None:
        """End all connections."""
        for member in list(self.by_name.values()):
            member.channel.close(reason)

    async def ask_all(self, op: str, **fields: Any) -> dict[str, Message]:
        """Return the replies of all machines. Raises LostError as soon as one of them is lost."""
        return await self.ask_each(op, dict.fromkeys(self.by_name, fields))

    async def ask_each(self, op: str, fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Message]:
        """Return the replies of machines to questions of their own. Raises as `ask_all`."""

        async def ask(name: str) -> Message:
            member = self.by_name.get(name)
            if member is None:
                raise LostError(f"{name} is lost")
            reply, _ = await member.channel.call(op, **fields[name])
            if reply.get("unready"):
                raise BeginAgainError(f"a worker of {name} did not start: {reply['unready']}")
            return reply

        names = list(fields)
        return dict(zip(names, await asyncio.gather(*(ask(name) for name in names)), strict=True))

    async def tell_all(self, op: str, seconds: float, **fields: Any) -> None:
        """Say something to all machines, whether they hear it or not."""
        calls = (member.channel.call(op, timeout=seconds, **fields) for member in self.by_name.values())
        await asyncio.gather(*calls, return_exceptions=True)


JOINING = 2.0
"""Multiple of `silence_seconds` for which a new coordinator waits for the machines of the generation."""


async def wait_for_generation(
    options: KeeperOptions, before: Generation, here: Collection[Address], members: Members, changed: asyncio.Event
) -> None:
    """Wait for the machines of a generation that answered at their addresses; `changed` is set when one has come."""
    expected = {machine.name for machine in before.machines if machine.address in here}
    end = time.monotonic() + JOINING * options.silence_seconds
    while not expected <= members.by_name.keys() and time.monotonic() < end:
        await _until(changed, end)


async def wait_for_plan(options: KeeperOptions, members: Members, changed: asyncio.Event, cloud: Cloud | None) -> None:
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


def standing_data(standing: Standing) -> dict[str, Any]:
    number, machines = standing.generation.number, [asdict(machine) for machine in standing.generation.machines]
    return {
        "address": standing.address,
        "generation": {"number": number, "machines": machines},
        "leader": standing.leader,
    }


def standing_of(data: Mapping[str, Any]) -> Standing:
    number, machines = data["generation"]["number"], data["generation"]["machines"]
    generation = Generation(number=number, machines=tuple(Machine(**item) for item in machines))
    return Standing(
        address=tuple(data["address"]), generation=generation, leader=data["leader"] and tuple(data["leader"])
    )


async def ask_standings(
    mine: Standing, addresses: Collection[Address], seconds: float, secret: bytes = b""
) -> list[Standing]:
    """Return the standing of this machine and of all that answer within so many seconds, at these addresses and where
    they say that their coordinators are. They hear where this machine's is. Raises StrangerError where all who answer
    have another secret, and this machine is of no generation yet: one of them is wrong."""
    standings, asked, asking = [mine], {mine.address}, set(addresses) - {mine.address}
    strangers: list[StrangerError] = []
    while asking:
        calls = (_standing_at(address, mine, seconds, secret) for address in sorted(asking))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        here = [answer for answer in answers if isinstance(answer, Standing)]
        strangers += [answer for answer in answers if isinstance(answer, StrangerError)]
        standings, asked = standings + here, asked | asking
        asking = {standing.leader for standing in here if standing.leader is not None} - asked
    if strangers and len(standings) == 1 and not mine.generation.machines:
        raise strangers[0]
    return standings


async def _standing_at(address: Address, mine: Standing, seconds: float, secret: bytes) -> Standing:
    """Return what a machine says of itself. Raises LostError, or what else keeps it from being understood."""
    return standing_of(await answer_of(address, "standing", secret=secret, timeout=seconds, leader=mine.leader))
