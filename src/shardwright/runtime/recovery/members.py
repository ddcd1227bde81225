"""The machines that have joined a coordinator, and what all of them are asked at once. No PyTorch."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardwright.recovery.quorum import Address, Machine
from shardwright.runtime.recovery.channel import Channel, LostError, Message


class BeginAgainError(Exception):
    """A recovery must begin anew; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A machine that has joined, the connection to it, and whether its workers have started."""

    machine: Machine
    channel: Channel
    ready: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
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
