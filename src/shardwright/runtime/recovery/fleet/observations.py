"""What a coordinator notes of the machines: how far the ranks of the generation are and which are slow, when machines
came and were lost, and why the next generation has to begin. No PyTorch."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import field

from shardwright.records import record
from shardwright.recovery.outlook import FleetChange, Outlook, outlook_of
from shardwright.recovery.slow import Pace, Rank, factors, slow_machines


@record
class GenerationProgress:
    """How far the ranks of a generation are: how many there are, on which machines, which of these have which step, and
    which GPUs have finished."""

    ranks: int = 0
    machines: frozenset[str] = frozenset()
    held: dict[int, set[str]] = field(default_factory=dict)
    finished: set[tuple[str, int]] = field(default_factory=set)

    def take(self, name: str, step: int) -> bool:
        """Note that a machine has a step, and return whether all have it now."""
        having = self.held.setdefault(step, set())
        having.add(name)
        if not having >= self.machines:
            return False
        for old in [number for number in self.held if number < step]:
            del self.held[old]
        return True

    @property
    def over(self) -> bool:
        """Whether all ranks are done and their last step is one that all machines have."""
        last = max(self.held, default=-1)
        return 0 < self.ranks <= len(self.finished) and self.held.get(last, set()) >= self.machines


@record
class RankSpeeds:
    """How fast the ranks of one generation are, so many of them: the seconds that they say, gathered into windows."""

    ranks: int
    now: dict[Rank, Pace] = field(default_factory=dict)
    best: dict[Rank, float] = field(default_factory=dict)
    windows: list[dict[str, float]] = field(default_factory=list)

    def take(self, pace: Pace) -> dict[str, float]:
        """Note a pace; when all ranks of a window have said theirs, return which machines are slow, and how much."""
        self.now[pace.rank] = pace
        if len(self.now) < self.ranks:
            return {}
        self.windows.append(factors(list(self.now.values()), self.best))
        for rank, latest in self.now.items():
            self.best[rank] = min(self.best.get(rank, latest.seconds), latest.seconds)
        self.now.clear()
        return slow_machines(self.windows)


@record
class FleetHistory:
    """The changes of a run since it first trained; machines that join before are no arrivals."""

    changes: list[FleetChange] = field(default_factory=list)

    def begins(self, there: int) -> None:
        """Note that the run trains on so many machines, if it is for the first time."""
        if not self.changes:
            self.changes.append(FleetChange(seconds=time.monotonic(), machines=there, lost=0, came=there))

    def changed(self, there: int, *, lost: int = 0, came: int = 0) -> None:
        """Note machines that were lost or came, after which so many are there."""
        if self.changes:
            self.changes.append(FleetChange(seconds=time.monotonic(), machines=there, lost=lost, came=came))

    def outlook(self, wanted: int) -> Outlook:
        """Return what is expected now of a run that wants so many machines."""
        return outlook_of(self.changes, wanted, time.monotonic())


@record
class RecoveryCause:
    """A cause in words, and when (monotonic) it was noticed."""

    words: str
    noticed: float


@record
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

    def retry(self, words: str, noticed: float) -> str:
        """Have a recovery that failed begin again, and return why: by a cause that was noticed meanwhile, or else by
        this one."""
        if not self.waiting:
            self.waiting[words] = RecoveryCause(words=words, noticed=noticed)
        return next(iter(self.waiting.values())).words

    def settled(self, names: Iterable[str]) -> None:
        """Forget the causes of machines that are in the next generation."""
        for name in names:
            self.waiting.pop(name, None)
