"""What ranks say of the seconds that they compute, gathered into windows: which machines are slow. No PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwright.recovery.slow import Pace, Rank, factors, slow_machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """The paces of one generation of so many ranks."""

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
        for rank, own in self.now.items():
            self.best[rank] = min(self.best.get(rank, own.seconds), own.seconds)
        self.now.clear()
        return slow_machines(self.windows)
