"""How ranks end: by what exit status, when they are asked to stop in good order, and with what started them, so that
nothing holds GPUs or writes after a launcher was killed.

Needs no PyTorch: a rank begins with it, before anything else takes time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

BAD_INPUT = 2  # the message of one rank says what
VERDICT = 70  # a rank is dead or stuck, and the one that found it said which
ORPHANED = 71  # what started the ranks has ended
DIVERGED = 72  # losses or gradients are no numbers
NOT_SAVED = 73  # trained to the end, but something could not be written
TOLD = (VERDICT, ORPHANED, DIVERGED, NOT_SAVED)  # a rank has said why

INTERVAL_SECONDS = 1.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class DivergedError(Exception):
    """Steps in a row had to be left out, by all ranks alike."""


def how_ended(code: int | None) -> str:
    """Return in words how a process with an exit code of Python's ended."""
    return (
        f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with status {code}"
    )


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a run to stop. The end of a terminal is none where `nohup` has it ignored."""
    hangs_up = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hangs_up else ())


def terminals() -> tuple[int, ...]:
    """Return which of standard output and error are a terminal now."""
    return tuple(number for number in (1, 2) if os.isatty(number))


def leave(terminals: Sequence[int]) -> None:
    """Write no more to terminals that have hung up: each word would be an error."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for number in terminals:
        os.dup2(nothing, number)
    os.close(nothing)


class StopRequest:
    """Takes the signals from its creation on; `asked` says whether one came, or the file is there (None: no file)."""

    def __init__(self, file: Path | None) -> None:
        self._file, self._signalled, self._terminals = file, False, terminals()
        for number in stop_signals():
            signal.signal(number, self._take)

    def asked(self) -> bool:
        """Return whether to stop after this step."""
        return self._signalled or (self._file is not None and self._file.exists())

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave(self._terminals)
        self._signalled = True


def end_with_parent(launcher: int | None) -> None:
    """End this process soon after its parent has ended. `launcher` is the process id of a parent that starts processes
    from the one thread that lives as long as it does; None: of unknown kind, as torchrun or srun.

    Linux is asked to kill this process together with the launcher, whatever it does then; a thread looks as well.
    """
    parent = os.getppid()
    if launcher is not None:
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            parent = os.getppid()
        if parent != launcher:  # it has ended before this was asked for
            os._exit(ORPHANED)
    threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL_SECONDS)
    os._exit(ORPHANED)
