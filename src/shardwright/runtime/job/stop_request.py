"""Requests to stop in good order: SIGINT and SIGTERM, or a file that the launcher leaves."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType


class StopRequest:
    """Takes the signals from its creation on; `asked` says whether one came, or the file is there (None: no file)."""

    def __init__(self, file: Path | None) -> None:
        self._file, self._signalled = file, False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def asked(self) -> bool:
        """Return whether to stop after this step."""
        return self._signalled or (self._file is not None and self._file.exists())

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True
