"""How weights are updated: method, learning rate over the steps, decay, clipping. Needs no PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Method = Literal["adamw", "sgd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How weights are updated. The rate rises linearly for `warmup_steps`, then falls as a cosine to
    `final_fraction` of itself at `decay_steps` (never, where that is 0). `momentum` is SGD's."""

    method: Method = "adamw"
    learning_rate: float = 3e-4
    warmup_steps: int = 0
    decay_steps: int = 0
    final_fraction: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.1
    clip: float = 1.0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if not self.decay_steps:
            return self.learning_rate
        done = min((step - self.warmup_steps) / max(self.decay_steps - self.warmup_steps, 1), 1.0)
        share = self.final_fraction + (1.0 - self.final_fraction) * 0.5 * (1.0 + math.cos(math.pi * done))
        return self.learning_rate * share

    @property
    def moments(self) -> tuple[str, ...]:
        """The names of what is kept for each weight."""
        return ("first", "second") if self.method == "adamw" else ("first",)
