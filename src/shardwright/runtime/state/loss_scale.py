"""Steps whose loss or gradients are not finite are left out, by all ranks alike; in fp16 the loss is scaled so that
gradients stay in range (dynamic loss scaling, arXiv 1710.03740 §3.2), and the scale is tried before training is given
up."""

from __future__ import annotations

from dataclasses import replace

from shardwright.records import record

FIRST, GROWTH_STEPS, LEAST = 2.0**16, 2_000, 1.0
MOST_IN_A_ROW = 5


@record
class LossScale:
    """What the loss is multiplied by, the good steps since that changed, the steps left out since the beginning, and in
    a row, those not counted after which a `dynamic` scale could still be halved."""

    value: float = FIRST
    good_steps: int = 0
    skipped: int = 0
    in_a_row: int = 0
    dynamic: bool = True

    @property
    def hopeless(self) -> bool:
        """Whether so many steps in a row were left out that no other is likely to be good."""
        return self.in_a_row >= MOST_IN_A_ROW

    def after(self, *, finite: bool) -> LossScale:
        """Return the scale of the next step: half where gradients were not finite, twice after 2,000 good steps."""
        if not finite:
            row = 0 if self.dynamic and self.value > LEAST else self.in_a_row + 1
            value = max(self.value / 2.0, LEAST) if self.dynamic else self.value
            return replace(self, value=value, good_steps=0, skipped=self.skipped + 1, in_a_row=row)
        if not self.dynamic:
            return replace(self, in_a_row=0)
        if self.good_steps + 1 == GROWTH_STEPS:
            return LossScale(value=self.value * 2.0, skipped=self.skipped)
        return LossScale(value=self.value, good_steps=self.good_steps + 1, skipped=self.skipped)


UNSCALED = LossScale(value=1.0, dynamic=False)
