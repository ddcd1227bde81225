"""Machines that have lost their generation come together again. All but one are played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
from tests.runtime.recovery.fleet import _free_ports, copies

from shardwright.plans.document import to_document
from shardwright.recovery.quorum import Generation, Machine
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.recovery.base import Base
from shardwright.runtime.recovery.channel import Channel, Message, Reply
from shardwright.runtime.recovery.course import run_of
from shardwright.runtime.recovery.keeper import Keeper
from shardwright.runtime.recovery.members import BeginAgainError, Member, Members
from shardwright.runtime.recovery.options import KeeperOptions
from shardwright.runtime.recovery.passage import MinorityError, Passage, Ready
from shardwright.runtime.recovery.rows import machine_data
from shardwright.runtime.recovery.tiers import Cloud
from shardwright.runtime.state.recipe import Recipe

SILENCE, PATIENCE = 0.3, 10.0


class Played:
    """Another machine of the run, which answers whoever would join it; `asked` once someone has."""

    def __init__(self, machine: Machine, reply: Message) -> None:
        self.machine, self.reply, self.asked = machine, reply, asyncio.Event()
        self.channels: list[Channel] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async with await asyncio.start_server(self._accept, self.machine.host, self.machine.port):
            yield
            for channel in self.channels:
                channel.close()
            await asyncio.sleep(0)  # the transports close

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def answer(message: Message, _payload: bytes) -> Reply:
            if message["op"] == "join":
                self.asked.set()
                return self.reply, b""
            return {}, b""

        self.channels.append(Channel(reader, writer, answer))


def keeper_options(machine: Machine, others: Sequence[Machine], folder: Path) -> KeeperOptions:
    return KeeperOptions(
        machine=machine,
        join=tuple((each.host, each.port) for each in (machine, *others)),
        plan=copies(3),
        settings=Settings(data=(), out=folder, steps=1, recipe=Recipe()),
        memory=folder / "memory",
        spares=0,
        beat_seconds=SILENCE / 3,
        silence_seconds=SILENCE,
    )


def start_of(machines: Sequence[Machine], seated: Machine) -> Message:
    """Return the start of a generation, all ranks of which are on one machine."""
    seats = [[seated.name, slot] for slot in range(3)]
    rows = [machine_data(machine) for machine in machines]
    fields = {"machines": rows, "seated": [], "seats": seats, "store": [], "step": 0, "scale": None}
    return {"op": "start", "generation": 1, "plan": to_document(copies(3))} | fields


def test_a_machine_whose_link_comes_back_finds_those_who_went_on_without_it(tmp_path: Path) -> None:
    """It comes back after the machine asked in vain at the new coordinator's, and before it asks another, which only
    says who coordinates."""
    ports = _free_ports(3)
    machines = [Machine(name=f"m{n}", host="127.0.0.1", port=port, gpu="A", gpus=0) for n, port in enumerate(ports)]
    leader = Played(machines[1], {"taken": True})
    other = Played(machines[2], {"taken": False, "leader": ["127.0.0.1", ports[1]]})

    async def play() -> None:
        keeper = Keeper(keeper_options(machines[0], machines[1:], tmp_path))
        await keeper.duties.answer(start_of(machines, machines[1]))
        async with other.listening():
            serving = asyncio.create_task(keeper.serve())
            await asyncio.wait_for(other.asked.wait(), PATIENCE)
            async with leader.listening():
                await asyncio.wait_for(leader.asked.wait(), PATIENCE)
                serving.cancel()
                with suppress(asyncio.CancelledError):
                    await serving

    asyncio.run(play())


def test_a_newcomer_that_loses_its_coordinator_asks_the_machine_that_is_to_be_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asked that machine before it joined, and is the last of its generation: it must not lead beside it."""
    ports = _free_ports(3)
    machines = [Machine(name=f"m{n}", host="127.0.0.1", port=port, gpu="A", gpus=0) for n, port in enumerate(ports)]
    following = Played(machines[1], {"taken": False, "leader": None})
    leader = Played(machines[2], {"taken": True})

    async def play() -> None:
        keeper = Keeper(keeper_options(machines[0], machines[1:], tmp_path))
        async with following.listening(), leader.listening():
            serving = asyncio.create_task(keeper.serve())
            await asyncio.wait_for(leader.asked.wait(), PATIENCE)
            message = start_of([machines[2], machines[1], machines[0]], machines[1])
            following.asked.clear()
            await leader.channels[0].call(**message)
            leader.channels[0].close()
            await asyncio.wait_for(following.asked.wait(), PATIENCE)
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    asyncio.run(play())
    assert "no majority" not in capsys.readouterr().err, "it led first, and was refused"


@pytest.mark.parametrize("others", [(0,), (0, 2)])
def test_a_machine_that_claimed_to_go_on_alone_goes_on_with_those_that_come_instead(
    tmp_path: Path, others: Sequence[int]
) -> None:
    """Its worker does not start, and its next attempt is with a majority. One without it has to wait all the time."""
    machines = [Machine(name=f"m{n}", host="h", port=n + 1, gpu="A", gpus=1) for n in range(3)]
    before = Generation(number=4, machines=tuple(machines))

    def start(there: Sequence[Machine], *, ready: bool = True) -> None:
        """Have the first of these start the next generation with all of them."""
        options = keeper_options(there[0], there[1:], tmp_path)
        by_name = {machine.name: Member(machine=machine, channel=cast(Channel, Answering(ready))) for machine in there}
        cloud = Cloud(f"file://{tmp_path}/store")
        passage = Passage(options=options, run=run_of(options), members=Members(by_name=by_name), cloud=cloud)
        base = Base(generation=Generation(number=5, machines=tuple(there)), plan=options.plan)
        asyncio.run(passage.start(Ready(before=before, halted=tuple(by_name), base=base, seats=(), step=0, scale=None)))

    with pytest.raises(BeginAgainError, match="a worker of m1 did not start"):
        start([machines[1]], ready=False)
    with pytest.raises(MinorityError, match="m1 with a minority is to go on"):
        start([machines[0], machines[2]])
    start([machines[1], *(machines[index] for index in others)])


class Answering:
    """A connection to a machine that answers whether it could start."""

    def __init__(self, ready: bool) -> None:
        self.ready = ready

    async def call(self, *_: object, **__: object) -> Reply:
        return {"ready": self.ready}, b""
