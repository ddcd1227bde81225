"""When a rank counts as lost, and which one."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace

import pytest
from tests.runtime.commands import waited

from shardwright.runtime.job.watchdog import Sign, Watch, silent, stands_in_a_wait, stuck

NAMES = ["rank 0", "rank 1", "rank 2"]


def sign(doing: str, seconds: float, *, waits: bool = False, step: int = 7) -> Sign:
    return Sign(count=3, step=step, doing=doing, seconds=seconds, waits=waits or doing.startswith("waiting"))


@pytest.mark.parametrize(
    ("found", "seconds", "words"),
    [
        (sign("computing, forward", 1.0), 9.0, ""),
        (sign("updating", 0.0), 12.0, "rank 2 has given no sign of life for 12 s; last seen updating, step 7"),
        (None, 12.0, "rank 2 has given no sign of life for 12 s"),
    ],
)
def test_a_silent_rank_is_dead(found: Sign | None, seconds: float, words: str) -> None:
    assert silent("rank 2", found, seconds, patience_seconds=10.0) == words


COMPUTING, MESSAGE, SUMS = "computing, forward", "waiting for a message", "waiting for gradient sums"


@pytest.mark.parametrize(
    ("signs", "words"),
    [
        ([sign(COMPUTING, 19.0), sign(MESSAGE, 18.0), sign(MESSAGE, 18.0)], ""),
        ([sign(MESSAGE, 30.0), sign(COMPUTING, 25.0), sign(SUMS, 40.0)], "rank 1 is stuck: computing, forward, step 7, for 25 s"),
        # its tensor-parallel peer computes as well, but stands in a collective: it waits for rank 2
        ([sign(COMPUTING, 26.0, waits=True), sign(MESSAGE, 25.0), sign(COMPUTING, 25.0)], "rank 2 is stuck"),
        # all wait: the one that stopped a step before is what the others wait for
        ([sign(SUMS, 25.0), sign(SUMS, 24.0, step=6), sign(SUMS, 25.0)], "no rank has gone on for 24 s; rank 1 has come least far"),
        ([sign(SUMS, 25.0), sign("updating", 25.0, waits=True), sign(SUMS, 30.0)], "rank 2 has come least far"),
        # somebody goes on, or may take long
        ([sign(SUMS, 25.0), sign(SUMS, 25.0), sign(COMPUTING, 3.0)], ""),
        ([sign(SUMS, 25.0), sign(SUMS, 25.0), sign("saving a checkpoint", 300.0)], ""),
        ([sign(SUMS, 25.0), sign(SUMS, 25.0), sign("starting", 300.0)], ""),
        ([sign(SUMS, 25.0), sign(SUMS, 25.0), None], ""),
    ],
)  # fmt: skip
def test_the_rank_that_keeps_the_others_is_named(signs: list[Sign | None], words: str) -> None:
    verdict = stuck(NAMES, signs, patience_seconds=10.0)
    assert verdict.startswith(words.split(";")[0]) if words.startswith("no rank") else words in verdict
    assert words in verdict and bool(verdict) == bool(words)


def test_where_a_thread_stands_is_seen_from_outside() -> None:
    ready, go, stop = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        ready.set()
        while not go.is_set():
            pass
        stop.wait()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    ready.wait()
    assert thread.ident is not None and not stands_in_a_wait(thread.ident)
    go.set()
    identity = thread.ident
    assert waited(lambda: stands_in_a_wait(identity), 60)
    stop.set()
    thread.join()
    assert not stands_in_a_wait(thread.ident)


def test_once_a_watch_is_stopped_no_call_of_the_store_is_under_way() -> None:
    """In the middle of which Python would end, and the process abort."""
    calling, began = threading.Event(), threading.Event()

    class Slow:
        def set(self, *_: object) -> None:
            calling.set()
            began.set()
            time.sleep(0.3)
            calling.clear()

        def check(self, _: object) -> bool:
            return False

    watch = Watch(Slow(), 0, ["rank 0"], 60.0)
    began.wait()
    watch.stop()
    assert not calling.is_set()


def test_a_thread_between_two_lines_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = SimpleNamespace(f_code=compile("", "step.py", "exec"), f_lineno=None, f_back=None)
    monkeypatch.setattr(sys, "_current_frames", lambda: {7: frame})
    assert not stands_in_a_wait(7)
