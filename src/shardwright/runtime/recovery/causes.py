"""Why a run has to come to the next generation. No PyTorch."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryCause:
    """A cause in words, and when (monotonic) it was noticed."""

    words: str
    noticed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """The causes that wait for a recovery, in the order in which they were noticed."""

    waiting: dict[str, RecoveryCause] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def add(self, words: str, *, of: str = "") -> None:
        """Note a cause; `of` is the machine that has to be in the next generation for it."""
        self.waiting.setdefault(of or words, RecoveryCause(words=words, noticed=time.monotonic()))

    def take(self) -> RecoveryCause:
        """Return the first cause; a recovery from it is one from all."""
        first = next(iter(self.waiting.values()))
        self.waiting.clear()
        return first

    def again(self, words: str, noticed: float) -> str:
        """Have a recovery that failed begin again, and return why: by a cause that was noticed meanwhile, or else by
        this one."""
        if not self.waiting:
            self.waiting[words] = RecoveryCause(words=words, noticed=noticed)
        return next(iter(self.waiting.values())).words

    def settled(self, names: Iterable[str]) -> None:
        """Forget the causes of machines that are in the next generation."""
        for name in names:
            self.waiting.pop(name, None)
