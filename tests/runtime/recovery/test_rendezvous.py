"""Groups that are made again in a process which was halted while it made or used some."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests import forked
from tests.runtime.recovery.fleet import copies
from tests.runtime.workers import join_pair

from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.recovery.worker import rendezvous
from shardwright.runtime.recovery.worker.rendezvous import GenerationStore

LIMIT = timedelta(seconds=5.0)


def test_a_group_that_was_never_made_has_no_number() -> None:
    """Ranks find each other by names that count groups: all must count alike, wherever each was halted."""
    asked: list[str] = []

    def halted(what: str, payload: bytes = b"", **fields: Any) -> Any:
        if "here" in str(fields):
            return {"value": 2}, b""
        asked.append(str(fields))
        raise RuntimeError("the generation is over")

    for _ in range(2):
        store = GenerationStore(halted, 5.0)
        with pytest.raises(RuntimeError, match="the generation is over"):
            rendezvous.form(
                layout_of(copies(2)), 0, store, torch.device("cpu"), LIMIT, rendezvous.Sockets(), pytest.fail
            )
        assert rendezvous.torn_down(5.0)
    assert len(asked) == 2 and asked[0] == asked[1]


def test_groups_that_do_not_form_are_told_of_once_all_ranks_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank is there, and none of its addresses ever comes."""
    monkeypatch.setattr(rendezvous, "FORMING_SECONDS", 0.2)
    late = threading.Event()

    def silent(what: str, payload: bytes = b"", **fields: Any) -> Any:
        if what == "wait" and "here" not in str(fields):
            assert late.wait(60.0)
            raise RuntimeError("nobody comes")
        return {"value": 2}, b""

    with pytest.raises(RuntimeError, match="nobody comes"):
        rendezvous.form(
            layout_of(copies(2)),
            0,
            GenerationStore(silent, 5.0),
            torch.device("cpu"),
            LIMIT,
            rendezvous.Sockets(),
            late.set,
        )
    assert rendezvous.torn_down(5.0)


def test_an_operation_that_never_ends_holds_nothing_up(tmp_path: Path) -> None:
    """Its peer says nothing more. Destroying the group waits for it."""
    joined = tmp_path / "joined"
    peer = forked.context().Process(target=_join_and_wait, args=(str(tmp_path / "store"), str(joined)), daemon=True)
    peer.start()
    try:
        join_pair(str(tmp_path / "store"), 0)
        while not joined.exists():
            time.sleep(0.01)
        work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
        assert not work.is_completed()
        del work
        assert not rendezvous.torn_down(0.5)
    finally:
        peer.kill()
    deadline = time.monotonic() + 60.0
    while any(thread.name == "tearing down" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.05)


def _join_and_wait(path: str, joined: str) -> None:
    join_pair(path, 1)
    Path(joined).touch()
    threading.Event().wait()
