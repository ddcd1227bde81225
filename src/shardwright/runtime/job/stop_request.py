"""Requests to stop in good order: SIGINT, SIGTERM and SIGHUP, or a file that the launcher leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType


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
