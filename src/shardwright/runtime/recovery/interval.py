"""When a rank takes snapshots, and how far it goes from the last step that all machines have, so that no more than an
interval is lost. No PyTorch.

Protecting a snapshot takes time: it is hashed, and what nobody else holds is copied to another machine. So one is taken
a tenth of the interval before it is due; the update that would leave the last protected step further behind than the
interval waits.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from math import ceil
from typing import Any

EARLY = 0.1


@dataclass(kw_only=True)
class Interval:
    """An interval of `every` steps, of which all machines have step number `protected`. A snapshot is taken every
    `also_every` steps too (0: not), when a checkpoint is due."""

    every: int
    protected: int
    also_every: int = 0
    handed: int = -1
    reply: Future[Any] | None = None

    def due(self, step: int) -> bool:
        """Return whether a snapshot is taken after so many steps."""
        usual = max(self.every - ceil(EARLY * self.every), 1)
        return step % usual == 0 or bool(self.also_every and step % self.also_every == 0)

    def hand(self, step: int, reply: Future[Any]) -> None:
        """Note a snapshot that is handed over: `reply` comes once all machines have it."""
        self.handed, self.reply = step, reply

    def wait(self, step: int) -> None:
        """Wait until the state may be that after `step` steps. A snapshot that is late is not waited for again."""
        if self.reply is not None and (step - self.protected > self.every or self.reply.done()):
            self.reply.result()
            self.protected, self.reply = self.handed, None
