"""How far the ranks of a generation are. No PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the ranks of a generation are: which machines have handed over which step, which GPUs have finished."""

    held: dict[int, set[str]] = field(default_factory=dict)
    finished: set[tuple[str, int]] = field(default_factory=set)
    ranks: int = 0

    def over(self, names: tuple[str, ...]) -> bool:
        """Return whether all ranks are done and their last step is one that all machines have."""
        last = max(self.held, default=-1)
        return 0 < self.ranks <= len(self.finished) and self.held.get(last, set()) >= set(names)
