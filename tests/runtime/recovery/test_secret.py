"""A keeper does nothing for those who have not the secret of its run."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import refused, run
from tests.runtime.recovery.fleet import Fleet, copies, supplied
from tests.runtime.recovery.test_rejoin import keeper_options, serving, some

from shardwright.cli.elastic import require_secret, secret_of
from shardwright.errors import SpecError
from shardwright.runtime.recovery.keeper.keeper import Keeper
from shardwright.runtime.recovery.wire import FRAME, StrangerError, connect, listen, refuse

SECRET = b"one that all machines have"
ASKED: list[dict[str, Any]] = [
    {"op": "halt", "generation": 10**9},
    {"op": "end", "status": 0},
    {"op": "piece", "tier": 0, "file": "index.json", "start": 0, "stop": 8},
    {"op": "inventory"},
    {"op": "standing", "leader": None},
    {"op": "store", "what": "set", "key": "k", "generation": 0},
]


@asynccontextmanager
async def kept(folder: Path) -> AsyncIterator[Keeper]:
    (machine,) = some(1)
    keeper = Keeper(replace(keeper_options(machine, [], folder), secret=SECRET))
    async with serving(keeper):
        while not keeper.leading:
            await asyncio.sleep(0.01)
        yield keeper


def played(folder: Path, play: Callable[[Keeper], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with kept(folder) as keeper:
            await play(keeper)

    asyncio.run(asyncio.wait_for(all_of_it(), 60.0))


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: str(asked["op"]))
def test_who_has_not_the_secret_is_answered_nothing(tmp_path: Path, asked: dict[str, Any], capsys: Any) -> None:
    """Neither one with another secret, nor one that sends frames at once: the keeper goes on, in the generation that it
    was in, and its files stay its own."""

    async def play(keeper: Keeper) -> None:
        before, address = keeper.from_coordinator.base.generation, keeper.options.address
        for secret in (b"", b"another", SECRET + b"x", SECRET[:-1]):
            with pytest.raises(StrangerError, match="has another secret"):
                await connect(*address, refuse, secret=secret, timeout=10.0)
        text = json.dumps({"id": 1} | asked).encode()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(FRAME.pack(len(text), 0) + text + bytes(100))
        answer = await reader.read()
        assert len(answer) == 64 and answer[32:] == bytes(32), "its challenge, and no proof"
        writer.close()
        assert not keeper.over.done() and keeper.from_coordinator.base.generation == before
        channel = await connect(*address, refuse, secret=SECRET, timeout=10.0)
        reply, _ = await channel.call("standing", leader=None, timeout=10.0)
        assert reply["generation"]["number"] == before.number
        channel.close()

    played(tmp_path, play)
    assert capsys.readouterr().err.count("127.0.0.1 was refused: it has not the secret of this run") == 1


def test_a_listener_without_the_secret_is_found_out_by_the_caller() -> None:
    """It sends the caller's own words back to it."""

    async def play() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while content := await reader.read(32):
                writer.write(content)
            writer.close()

        (machine,) = some(1)
        async with await asyncio.start_server(echo, *machine.address):
            with pytest.raises(StrangerError):
                await connect(*machine.address, refuse, secret=SECRET, timeout=10.0)
            await asyncio.sleep(0.05)  # the transports close

    asyncio.run(play())


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.runtime.recovery.wire.GREETING_SECONDS", 0.1)

    async def play() -> None:
        (machine,) = some(1)
        async with await listen(*machine.address, lambda *_: pytest.fail("it is unknown"), secret=SECRET):
            reader, writer = await asyncio.open_connection(*machine.address)
            assert len(await reader.read()) == 32
            writer.close()
            await asyncio.sleep(0.05)  # the transports close

    asyncio.run(play())


def test_other_machines_are_listened_to_with_a_secret_alone(tmp_path: Path) -> None:
    supplied(tmp_path, copies(1))
    words = ["train", tmp_path / "plan.json", "--data", tmp_path / "c.bin", "--elastic", "--out", tmp_path / "out"]
    said = refused(run(list(map(str, [*words, "--listen", "10.1.2.3:29400"]))))
    assert "error: --listen 10.1.2.3:29400: anybody who reaches this address could end the run" in said
    assert "openssl rand -hex 32" in said and "--secret-file FILE" in said
    for host in ("127.0.0.1", "localhost", "::1"):
        require_secret(b"", "", host)
    for host in ("0.0.0.0", "10.0.0.1", "no.such.host.invalid"):
        with pytest.raises(SpecError, match="as it has no secret"):
            require_secret(b"", "", host)
        require_secret(SECRET, "", host)


def test_a_secret_is_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    monkeypatch.setenv("SHARDWRIGHT_SECRET", "the one of the environment")
    assert secret_of(path) == SECRET and secret_of(None) == b"the one of the environment"
    monkeypatch.delenv("SHARDWRIGHT_SECRET")
    assert secret_of(None) == b""
    path.write_text("short")
    for file, words in ((path, "has fewer than 16 characters"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(SpecError, match=words):
            secret_of(file)


@pytest.mark.nightly
def test_of_two_keepers_the_one_with_another_secret_ends_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not that of the others")
    with Fleet(tmp_path, copies(2), 5, options={1: ["--secret-file", tmp_path / "secret"]}) as fleet:
        assert fleet.running[1].wait(120) == 2
        assert "has another secret than this machine" in (fleet.place(1) / "log").read_text()
        for pid in [process.pid for process in fleet.running.values() if process.poll() is None]:
            assert b"of the machines in tests" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert os.environ.get("SHARDWRIGHT_SECRET") is None


def test_an_address_that_is_taken_is_named() -> None:
    async def play() -> None:
        host, port = some(1)[0].address
        async with await listen(host, port, lambda *_: None, secret=SECRET):
            with pytest.raises(SpecError, match=f"`listen={host}:{port}`: is taken"):
                await listen(host, port, lambda *_: None, secret=SECRET)

    asyncio.run(play())
