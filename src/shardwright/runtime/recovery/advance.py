"""How far the ranks of a generation are. No PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
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
