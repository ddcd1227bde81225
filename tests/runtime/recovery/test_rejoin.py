"""Machines that have lost their generation come together again. All but one are played."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.runtime.recovery.fleet import _free_ports, copies, settings_in

from shardwright.plans.document import to_document
from shardwright.recovery.quorum import Address, Generation, Machine, Standing
from shardwright.runtime.recovery.change.coordinator import Coordinator
from shardwright.runtime.recovery.fleet.membership import ask_standings, standing_data
from shardwright.runtime.recovery.keeper.keeper import Keeper
from shardwright.runtime.recovery.run import KeeperOptions
from shardwright.runtime.recovery.wire import Channel, Message, Reply, listen, refuse

SILENCE, PATIENCE = 0.9, 60.0


class Played:
    """Another machine of the run, which was in a generation last and has its coordinator somewhere; `asked` once
    someone has looked for a coordinator, `joined` once someone has joined this one."""

    def __init__(self, machine: Machine, number: int = 0, members: Sequence[Machine] = ()) -> None:
        self.machine = machine
        self.leader: Address | None = None
        self.generation = Generation(number=number, machines=tuple(members))
        self.asked, self.joined = asyncio.Event(), asyncio.Event()
        self.channels: list[Channel] = []

    @property
    def address(self) -> Address:
        return self.machine.address

    def following(self, leader: Machine) -> Played:
        self.leader = leader.address
        return self

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async with await listen(*self.machine.address, self._accept, secret=b""):
            yield
            for channel in self.channels:
                channel.close()
            await asyncio.sleep(0)  # the transports close

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def answer(message: Message, _payload: bytes) -> Reply:
            if message["op"] == "standing":
                self.asked.set()
                mine = Standing(address=self.address, generation=self.generation, leader=self.leader)
                return standing_data(mine), b""
            if message["op"] == "join":
                self.joined.set()
                self.member = channel
                return {"taken": self.leader == self.address}, b""
            return {}, b""

        channel = Channel(reader, writer, answer)
        self.channels.append(channel)


def keeper_options(machine: Machine, others: Sequence[Machine], folder: Path) -> KeeperOptions:
    """Return what the keeper of a machine is told that is the first of `--join`."""
    return KeeperOptions(
        machine=machine,
        join=tuple(each.address for each in (machine, *others)),
        plan=copies(3),
        settings=settings_in(folder),
        memory=folder / "memory",
        spares=0,
        beat_seconds=SILENCE / 3,
        silence_seconds=SILENCE,
    )


async def started(keeper: Keeper, machines: Sequence[Machine], seated: Machine) -> None:
    """Have a keeper start a generation, all ranks of which are on another machine."""
    seats = [[seated.name, slot] for slot in range(3)]
    rows = [asdict(machine) for machine in machines]
    fields = {"machines": rows, "seated": [], "seats": seats, "store": [], "step": 0, "scale": None, "kept": False}
    await keeper.from_coordinator.answer({"op": "start", "generation": 5, "plan": to_document(copies(3))} | fields)


@asynccontextmanager
async def serving(keeper: Keeper) -> AsyncIterator[None]:
    task = asyncio.create_task(keeper.serve())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)  # connections that were ended at one side end at the other


def some(count: int) -> list[Machine]:
    ports = _free_ports(count)
    return [Machine(name=f"m{n}", host="127.0.0.1", port=port, gpu="A", gpus=0) for n, port in enumerate(ports)]


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), PATIENCE)


async def until_it_leads(keeper: Keeper) -> None:
    while keeper.leading is None:
        await asyncio.sleep(0.01)


def test_a_machine_whose_link_comes_back_finds_those_who_went_on_without_it(tmp_path: Path) -> None:
    """They are of no generation that it knows; the one that is left of its own says where their coordinator is."""
    machines = some(3)
    leader = Played(machines[2], 7, machines[1:]).following(machines[2])
    other = Played(machines[1], 7, machines[1:]).following(machines[2])

    async def play() -> None:
        keeper = Keeper(keeper_options(machines[0], machines[1:2], tmp_path))
        await started(keeper, machines[:2], machines[1])
        async with other.listening(), leader.listening(), serving(keeper):
            await soon(leader.joined)

    asyncio.run(play())


def test_a_machine_that_was_cut_off_hears_from_the_coordinator_that_asks_it(tmp_path: Path) -> None:
    """Nobody that it knows answers. The coordinator waits for machines, and asks those of `--join`."""
    machines = some(3)
    leader = Played(machines[2], 7, machines[2:]).following(machines[2])

    async def play() -> None:
        keeper = Keeper(keeper_options(machines[0], machines[1:2], tmp_path))
        await started(keeper, machines[:2], machines[1])
        silent = socket.create_server(machines[1].address)
        async with leader.listening(), serving(keeper):
            mine = Standing(address=leader.address, generation=leader.generation, leader=leader.address)
            while not leader.joined.is_set():
                await ask_standings(mine, [keeper.options.address], SILENCE)
                await asyncio.sleep(SILENCE / 3)
        silent.close()

    asyncio.run(asyncio.wait_for(play(), PATIENCE))


def test_the_first_machine_of_all_begins_no_second_run_when_it_is_started_anew(tmp_path: Path) -> None:
    """The other remembers a generation, and finds that it is to lead; this one waits for it."""
    machines = some(2)
    other = Played(machines[1], 4, machines)

    async def play() -> None:
        keeper = Keeper(keeper_options(machines[0], machines[1:], tmp_path))
        async with other.listening(), serving(keeper):
            for _ in range(3):
                await soon(other.asked)
                other.asked.clear()
                assert keeper.leading is None
            other.following(machines[1])
            await soon(other.joined)

    asyncio.run(play())


def test_a_beginner_gives_way_to_a_run_that_it_could_not_see(tmp_path: Path) -> None:
    """It was started anew and nobody answered, so it waits for the machines of the plan. Then its link comes back."""
    machines = some(2)
    other = Played(machines[1], 4, machines).following(machines[1])

    async def play() -> None:
        keeper = Keeper(keeper_options(machines[0], machines[1:], tmp_path))
        async with serving(keeper):
            await until_it_leads(keeper)
            async with other.listening():
                await soon(other.joined)
                assert keeper.leading is None

    asyncio.run(asyncio.wait_for(play(), PATIENCE))


def test_a_coordinator_whose_machines_train_gives_way_to_a_group_that_went_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could not see each other, and both went on."""
    machines = some(2)
    other = Played(machines[1], 7, machines[1:]).following(machines[1])
    monkeypatch.setattr(Coordinator, "idle", False)

    async def play() -> None:
        keeper = Keeper(keeper_options(machines[0], machines[1:], tmp_path))
        await started(keeper, machines[:1], machines[1])
        async with serving(keeper):
            await until_it_leads(keeper)
            async with other.listening():
                await soon(other.joined)
                assert keeper.leading is None

    asyncio.run(asyncio.wait_for(play(), PATIENCE))


def test_a_newcomer_that_loses_its_coordinator_asks_the_machine_that_is_to_be_the_next(tmp_path: Path) -> None:
    """It is the last of its generation, and the first of `--join`: it must not lead beside the next one."""
    machines = some(3)
    order = [machines[2], machines[1], machines[0]]
    leader = Played(machines[2], 5, order).following(machines[2])
    following = Played(machines[1], 5, order).following(machines[2])

    async def play() -> None:
        keeper = Keeper(keeper_options(machines[0], machines[1:], tmp_path))
        async with following.listening(), leader.listening(), serving(keeper):
            await soon(leader.joined)
            await started(keeper, order, machines[1])
            leader.leader = following.leader = None
            leader.member.close()
            await soon(following.joined)
            assert keeper.leading is None

    asyncio.run(play())


def test_a_machine_leads_where_the_first_of_its_generation_was_started_anew(tmp_path: Path) -> None:
    machines = some(2)
    first = Played(machines[0])

    async def play() -> None:
        keeper = Keeper(keeper_options(machines[1], machines[:1], tmp_path))
        await started(keeper, machines, machines[0])
        async with first.listening(), serving(keeper):
            await until_it_leads(keeper)

    asyncio.run(asyncio.wait_for(play(), PATIENCE))


def test_a_connection_that_is_closed_before_it_is_used_is_lost_and_nothing_more() -> None:
    """Its socket takes no options any more; that ended the keeper."""

    async def play() -> None:
        closed, lost, reader = socket.socket(), asyncio.Event(), asyncio.StreamReader()
        closed.close()
        reader.feed_eof()
        writer = SimpleNamespace(get_extra_info=lambda _: closed, transport=SimpleNamespace(abort=lambda: None))
        Channel(reader, cast(asyncio.StreamWriter, writer), refuse, lambda *_: lost.set())
        await soon(lost)

    asyncio.run(play())
