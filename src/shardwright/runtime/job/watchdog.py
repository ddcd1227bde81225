"""Finds the rank that is dead or stuck, so that a run that cannot go on ends with its name.

A thread of every rank puts a sign of life into the rendezvous store, with what the rank is doing and for how long, and
reads that of the next rank. A rank without signs for longer than the patience is dead (or its machine is); one that
computes for twice as long is stuck: later, because a rank also computes while it waits for a dead one within a layer.
Whoever finds it leaves a verdict in the store, which ends all ranks.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

VERDICT_STATUS = 70  # the exit status of ranks that end for a verdict
VERDICT = "watch/verdict"
WAITING = "waiting"
STUCK = 2.0  # times the patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A sign of life: how many came before, what the rank does, and for how many seconds already."""

    count: int
    doing: str
    seconds: float


def judged(name: str, sign: Sign | None, silent_seconds: float, patience_seconds: float) -> str:
    """Return what is wrong with a rank in words, "" if nothing. Its sign has not changed for `silent_seconds`."""
    if silent_seconds > patience_seconds:
        last = f"; last seen {sign.doing}" if sign else ""
        return f"{name} has given no sign of life for {silent_seconds:.0f} s{last}"
    if sign is not None and not sign.doing.startswith(WAITING) and sign.seconds > STUCK * patience_seconds:
        return f"{name} is stuck: {sign.doing} for {sign.seconds:.0f} s"
    return ""


class Watch:
    """The thread of one rank. `note` says what the rank does now; `stop` ends the watch."""

    def __init__(self, store: Any, rank: int, names: Sequence[str], patience_seconds: float) -> None:
        self._store, self._rank, self._names, self._patience = store, rank, names, patience_seconds
        self._doing, self._since = f"{WAITING} for the start", time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def note(self, doing: str) -> None:
        """Say what the rank does from now on; names of waits start with "waiting"."""
        self._doing, self._since = doing, time.monotonic()

    def stop(self) -> None:
        """End the watch, at the regular end of a run."""
        self._over.set()
        self._thread.join(timeout=self._patience)

    def blame(self, asked_to_stop: Callable[[], bool]) -> str:
        """Return the verdict on a failure that this rank noticed, "" where none comes within the patience, or the
        launcher ends the run first."""
        self.note(f"{WAITING} for the verdict on a failure")
        end = time.monotonic() + 2 * self._patience
        while time.monotonic() < end and not asked_to_stop():
            if self._store.check([VERDICT]):
                return str(self._store.get(VERDICT).decode())
            time.sleep(min(self._patience / 10, 0.5))
        return ""

    def _run(self) -> None:
        interval = min(self._patience / 5, 2.0)
        following = (self._rank + 1) % len(self._names)
        seen, changed, count = None, time.monotonic(), 0
        while not count or not self._over.wait(interval):  # the first sign comes at once
            now = time.monotonic()
            count += 1
            sign = {"count": count, "doing": self._doing, "seconds": now - self._since}
            try:
                self._store.set(f"watch/{self._rank}", json.dumps(sign))
                if self._store.check([VERDICT]):
                    self._end(self._store.get(VERDICT).decode())
                key = f"watch/{following}"
                found = Sign(**json.loads(self._store.get(key))) if self._store.check([key]) else None
                if found != seen:
                    seen, changed = found, now
                verdict = judged(self._names[following], found, now - changed, self._patience)
                if verdict and following != self._rank and not self._over.is_set():
                    self._store.set(VERDICT, verdict)
                    print(f"error: {verdict}", file=sys.stderr, flush=True)
                    self._end(verdict)
            except Exception:  # the store is gone: the launcher is, or ends the run
                return

    def _end(self, verdict: str) -> None:
        """End the process, which may be blocked in a communication that no signal handler interrupts."""
        time.sleep(2 * min(self._patience / 5, 2.0))  # others read the verdict too
        os._exit(VERDICT_STATUS)
