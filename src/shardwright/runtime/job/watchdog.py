"""Finds the rank that is dead or stuck, so that a run that cannot go on ends with its name.

A thread of every rank puts a sign of life into the rendezvous store, with what the rank does and since when, and reads
that of the next rank. A rank without signs for longer than the patience is dead (or its machine is). Rank 0 reads all
signs: of ranks that stand still for twice the patience, those that only wait for others are innocent as long as one of
them does not; where all wait, the one that has come least far is named. Whoever finds one leaves a verdict in the
store, which ends all ranks. So does a store that is gone, or does not answer. Of an error that ends a rank's own work
it is told here as well whether the rank is at fault, or one that it waited for.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pickle import UnpicklingError
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from shardwright.records import record
from shardwright.runtime.job import ending

VERDICT = "watch/verdict"
WAITING, SAVING, STARTING = "waiting", "saving", "starting"
STUCK = 2.0  # times the patience
INTERVAL_SECONDS, INTERVAL_SECONDS_A_RANK, FAREWELL_SECONDS = 0.1, 0.002, 3.0  # the store serves all ranks

MESSAGE_CHARACTERS = 400
BACKENDS = ("gloo", "nccl")
LOST = (RuntimeError, UnpicklingError, EOFError)

COLLECTIVES = "distributed_c10d.py"
FOR_OTHERS = (".wait(", "wait_tensor")
FOR_DEVICE = (".synchronize(", ".tolist(", ".item(")  # which may be waiting for others


@record
class Sign:
    """A sign of life: how many came before, the step, what the rank does, for how many seconds already, and whether it
    waits for others."""

    count: int
    step: int
    doing: str
    seconds: float
    waits: bool


def silent(name: str, sign: Sign | None, silent_seconds: float, patience_seconds: float) -> str:
    """Return what is wrong with a rank in words, "" if nothing. Its sign has not changed for `silent_seconds`."""
    if silent_seconds <= patience_seconds:
        return ""
    last = f"; last seen {sign.doing}, step {sign.step}" if sign else ""
    return f"{name} has given no sign of life for {silent_seconds:.0f} s{last}"


def stuck(names: Sequence[str], signs: Sequence[Sign | None], patience_seconds: float) -> str:
    """Return which of all ranks keeps the others from going on, in words, "" if none does. A rank that saves or starts
    may take as long as it needs."""
    judged = [(rank, sign) for rank, sign in enumerate(signs) if sign and not sign.doing.startswith((SAVING, STARTING))]
    still = [(rank, sign) for rank, sign in judged if sign.seconds > STUCK * patience_seconds]
    guilty = [(rank, sign) for rank, sign in still if not sign.waits]
    if not guilty and (not still or len(still) < len(names)):
        return ""
    rank, sign = min(guilty or still, key=lambda item: (item[1].step, -item[1].seconds, item[0]))
    if guilty:
        return f"{names[rank]} is stuck: {sign.doing}, step {sign.step}, for {sign.seconds:.0f} s"
    least = min(sign.seconds for _, sign in still)
    return f"no rank has gone on for {least:.0f} s; {names[rank]} has come least far: {sign.doing}, step {sign.step}"


class Watch:
    """The threads of one rank. `note` says what the rank does now, `begin` which step it is; `stop` ends the watch."""

    def __init__(self, store: Any, rank: int, names: Sequence[str], patience_seconds: float) -> None:
        self._store, self._rank, self._names, self._patience = store, rank, names, patience_seconds
        self._interval = min(patience_seconds / 8, INTERVAL_SECONDS + INTERVAL_SECONDS_A_RANK * len(names))
        self._doing, self._since, self._step = STARTING, time.monotonic(), 0
        self._main, self._round = threading.get_ident(), time.monotonic()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work, name="watch", daemon=True) for work in (self._run, self._guard)]
        for thread in self._threads:
            thread.start()

    def begin(self, step: int) -> None:
        """Say which step begins, counted from 1 as in the metrics."""
        self._step = step

    def note(self, doing: str) -> None:
        """Say what the rank does from now on; names of waits start with "waiting"."""
        self._doing, self._since = doing, time.monotonic()

    def stop(self) -> None:
        """End the watch, at the regular end of a run. A thread that is in a call of the store when Python ends would
        abort the process ("terminate called without an active exception")."""
        self._over.set()
        for thread in self._threads:
            thread.join(FAREWELL_SECONDS)

    def accuse(self, what: str) -> None:
        """Have all ranks end at once, as this one has failed by itself. Nobody else can say of it why."""
        self._over.set()  # before this watch finds its own verdict
        verdict = f"{self._names[self._rank]} failed: {what}"
        print(f"\nerror: {verdict}", file=sys.stderr, flush=True)
        with suppress(RuntimeError):  # the store is gone, and with it the launcher
            self._store.set(VERDICT, verdict)
            time.sleep(4 * self._interval + 0.5)  # others read it

    def blame(self, asked_to_stop: Callable[[], bool]) -> str:
        """Return the verdict on a failure that this rank noticed, "" where none comes within the patience, or the
        launcher ends the run first."""
        self.note(f"{WAITING} for the verdict on a failure")
        end = time.monotonic() + 2 * self._patience
        while time.monotonic() < end and not asked_to_stop():
            try:
                if self._store.check([VERDICT]):
                    return str(self._store.get(VERDICT).decode())
            except RuntimeError:  # the store is gone, and with it the launcher
                return ""
            time.sleep(min(self._patience / 10, 0.5))
        return ""

    def _run(self) -> None:
        seen, changed, count = None, time.monotonic(), 0
        while not count or not self._over.wait(self._interval):  # the first sign comes at once
            count += 1
            try:
                self._say(count)
                self._round = time.monotonic()
                sign = self._sign((self._rank + 1) % len(self._names))
                if sign != seen:
                    seen, changed = sign, self._round
                self._judge(seen, self._round - changed)
            except Exception as error:  # as the store raises when it is gone
                self._leave(f"the store of the run is gone ({type(error).__name__})")
                return

    def _guard(self) -> None:
        """End the process where the store takes a call and never answers."""
        while not self._over.wait(self._interval):
            if time.monotonic() - self._round > self._patience:
                self._leave("the store of the run does not answer")

    def _say(self, count: int) -> None:
        doing, seconds = self._doing, time.monotonic() - self._since
        waits = doing.startswith(WAITING) or stands_in_a_wait(self._main)
        sign = Sign(count=count, step=self._step, doing=doing, seconds=seconds, waits=waits)
        self._store.set(f"watch/{self._rank}", json.dumps(asdict(sign)))

    def _sign(self, rank: int) -> Sign | None:
        key = f"watch/{rank}"
        return Sign(**json.loads(self._store.get(key))) if self._store.check([key]) else None

    def _judge(self, following: Sign | None, silent_seconds: float) -> None:
        if self._store.check([VERDICT]):
            self._end()
        if len(self._names) == 1 or self._over.is_set():
            return
        name = self._names[(self._rank + 1) % len(self._names)]
        verdict = silent(name, following, silent_seconds, self._patience)
        if not verdict and self._rank == 0 and time.monotonic() - self._since > self._patience:
            verdict = stuck(self._names, [self._sign(rank) for rank in range(len(self._names))], self._patience)
        if verdict:
            self._store.set(VERDICT, verdict)
            print(f"\nerror: {verdict}", file=sys.stderr, flush=True)
            self._end()

    def _end(self) -> None:
        """End the process, which may be blocked in a communication that no signal handler interrupts."""
        time.sleep(4 * self._interval + 0.5)  # others read the verdict too
        os._exit(ending.VERDICT)

    def _leave(self, why: str) -> None:
        """End the process unless the run is at its regular end, when the store goes too."""
        if not self._over.wait(FAREWELL_SECONDS):
            print(f"\nerror: {self._names[self._rank]}: {why}", file=sys.stderr, flush=True)
            os._exit(ending.ORPHANED)


def lost_others(error: BaseException) -> bool:
    """Return whether an error says that other ranks are lost: torch.distributed raises its own errors, and gloo plain
    RuntimeErrors out of a collective or a wait for one; what an aborted collective leaves of an object cannot be read.
    Memory that is full and a device that fails are faults of this rank, wherever they show."""
    if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError) or not isinstance(error, LOST):
        return False
    if isinstance(error, dist.DistError) or any(map(waits_for_others, _places(error))):
        return True
    return any(name in str(error).lower() for name in BACKENDS)  # out of the backward pass, which is no frame


def fault_of(error: BaseException) -> str:
    """Return what went wrong, in words and with the line where it did."""
    lines = str(error).strip().splitlines() or [""]
    *_, (path, line) = [("", 0), *_places(error)]
    return f"{type(error).__name__}: {lines[0][:MESSAGE_CHARACTERS]} ({path.rpartition('/')[2]}:{line})"


def _places(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield file and line of each frame that an error came through, the innermost last."""
    return ((frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__))


def stands_in_a_wait(thread: int) -> bool:
    """Return whether a thread is in a collective of torch.distributed, or on a line that waits."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if _waits(frame):
            return True
        frame = frame.f_back
    return False


def waits_for_others(place: tuple[str, int]) -> bool:
    """Return whether a line of a file is in a collective of torch.distributed, or waits for one."""
    return place[0].endswith(COLLECTIVES) or any(call in linecache.getline(*place) for call in FOR_OTHERS)


def _waits(frame: FrameType) -> bool:
    place = (frame.f_code.co_filename, frame.f_lineno or 0)  # between two lines it has none
    return waits_for_others(place) or any(call in linecache.getline(*place) for call in FOR_DEVICE)
