"""Work that goes on beside a keeper's main course: it is held until it is done, and its failures are told. No
PyTorch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Errands:
    """Errands of one kind; `what` is said where one fails."""

    what: str
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin an errand."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._over)

    async def finished(self) -> None:
        """Wait for those that are under way."""
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _over(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            print(f"{self.what} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
