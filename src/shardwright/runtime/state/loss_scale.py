"""Dynamic loss scaling for fp16 (arXiv 1710.03740 §3.2): gradients are kept in fp16's range, and a step of which one is
not finite is left out, by all ranks alike."""

from __future__ import annotations

from dataclasses import dataclass

FIRST, GROWTH_STEPS, LEAST = 2.0**16, 2_000, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """What the loss is multiplied by, the good steps since that changed, and the steps left out since the beginning."""

    value: float = FIRST
    good_steps: int = 0
    skipped: int = 0

    def after(self, *, finite: bool) -> LossScale:
        """Return the scale of the next step: half where gradients were not finite, twice after 2,000 good steps."""
        if not finite:
            return LossScale(value=max(self.value / 2.0, LEAST), skipped=self.skipped + 1)
        if self.good_steps + 1 == GROWTH_STEPS:
            return LossScale(value=self.value * 2.0, skipped=self.skipped)
        return LossScale(value=self.value, good_steps=self.good_steps + 1, skipped=self.skipped)


UNSCALED = LossScale(value=1.0)
