"""The claim to follow a generation is settled for one alone, whatever the store and however two claims interleave."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.cli.running import refused, run
from tests.runtime.recovery.fleet import copies, supplied
from tests.runtime.recovery.store import store

from shardwright.runtime.recovery.state import cloud as clouds
from shardwright.runtime.recovery.state.cloud import Cloud, require_claims

ROUNDS = 50


class Looking(MemoryFileSystem):  # type: ignore[misc]
    """A store as fsspec has them by default: it looks whether a file exists, and then writes it. Both claimers look
    before either writes."""

    protocol = "looking"
    cachable = False
    looked = threading.Barrier(2)

    def exists(self, path: str, **options: Any) -> bool:
        there = bool(super().exists(path, **options))
        if path.endswith(".json"):
            self.looked.wait(10.0)
        return there

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        fsspec.AbstractFileSystem.pipe_file(self, path, value, mode=mode)


@pytest.fixture(autouse=True)
def looking() -> None:
    fsspec.register_implementation("looking", Looking, clobber=True)


def together(*calls: Callable[[], str]) -> list[str]:
    """Return what calls return, or the names of what they raise, made at once."""
    answers, ready = [""] * len(calls), threading.Barrier(len(calls))

    def make(number: int) -> None:
        ready.wait()
        try:
            answers[number] = calls[number]()
        except OSError as error:
            answers[number] = type(error).__name__

    threads = [threading.Thread(target=make, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_a_store_that_looks_and_then_writes_settles_nothing_and_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it were taken at its word, both would go on."""
    cloud = Cloud("looking://run")
    assert together(*(lambda me=me: cloud.claim("r", 3, me) for me in "ab")) == ["OSError", "OSError"]  # type: ignore[misc]
    monkeypatch.setattr(Looking, "exclusive_create", True, raising=False)
    assert together(*(lambda me=me: cloud.claim("r", 4, me) for me in "ab")) == ["a", "b"]  # type: ignore[misc]


def test_of_claims_in_a_folder_one_alone_stands_and_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, long = Cloud(f"file://{tmp_path}"), Cloud(str(tmp_path)), "x" * 10_000
    for number in range(ROUNDS):
        answers = together(
            lambda number=number: first.claim("r", number, f"a{long}"),  # type: ignore[misc]
            lambda number=number: second.claim("r", number, f"b{long}"),  # type: ignore[misc]
        )
        assert answers[0] == answers[1] and len(answers[0]) == 1 + len(long)
    assert first.claims("r") == list(range(ROUNDS)) and not list(tmp_path.glob("generations/.*"))

    def no_links(*_: object) -> None:
        raise OSError(clouds.NO_LINKS[0], "the folder takes none")

    monkeypatch.setattr("os.link", no_links)
    assert [first.claim("r", ROUNDS, "a"), second.claim("r", ROUNDS, "b")] == ["a", "a"]


def test_stores_are_known_by_their_class() -> None:
    with store() as (_, url):
        require_claims(url)
    for name in clouds.ATOMIC:
        module, _, kind = name.rpartition(".")
        known = type(kind, (), {"__module__": module, "_pipe_file": lambda self, path, value, mode="overwrite": None})
        old = type(kind, (), {"__module__": module, "_pipe_file": lambda self, path, value: None})
        cloud = Cloud("memory://run")
        for files, settles in ((known(), True), (old(), False)):
            cloud._files = files
            assert cloud.settles_claims == settles


def test_the_remedy_is_named_before_the_run(tmp_path: Path) -> None:
    supplied(tmp_path, copies(1))
    words = ["train", tmp_path / "plan.json", "--data", tmp_path / "c.bin", "--elastic", "--out", tmp_path / "out"]
    words += ["--device", "cpu", "--upload", "memory://run"]
    assert "--upload memory://run: this kind of store cannot tell" in (said := refused(run(list(map(str, words)))))
    assert "--etcd HOST:PORT" in said
