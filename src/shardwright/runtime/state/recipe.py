"""How weights are updated: method, learning rate over the steps, decay, clipping; and which steps are left out. Needs
no PyTorch.

Steps whose loss or gradients are not finite are left out, by all ranks alike; in fp16 the loss is scaled so that
gradients stay in range (dynamic loss scaling, arXiv 1710.03740 §3.2), and the scale is tried before training is given
up.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from shardwright.records import record
from shardwright.spec.job import Optimizer

if TYPE_CHECKING:
    from shardwright.runtime.model.parameters import ModelParameter
    from shardwright.runtime.state.buckets import Segment


Method = Literal["adamw", "adamw8bit", "muon", "sgd"]
Schedule = Literal["cosine", "linear", "wsd"]
METHODS: tuple[Method, ...] = get_args(Method)
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
METHOD_OF: dict[Optimizer, Method] = {
    "adam": "adamw",
    "adam8bit": "adamw8bit",
    "muon": "muon",
    "sgd": "sgd",
    "none": "adamw",
}
MOMENTS: dict[Method, tuple[str, ...]] = {
    "adamw": ("first", "second"),
    "adamw8bit": ("first", "second"),
    "muon": ("first",),
    "sgd": ("first",),
}  # kept for each weight
STABLE = 0.9  # of the steps that warm-up, stable and decay phase take together, those before the decay


@record
class Recipe:
    """How weights are updated. The rate rises linearly for `warmup_steps`, stays until step `decay_from`, and falls to
    `final_fraction` of itself at `decay_steps` (never, where that is 0): as a cosine, or linearly. `wsd` (warm-up,
    stable, decay: arXiv 2404.06395 §4) falls linearly, in the last tenth of the steps where `decay_from` is 0.
    `momentum` is SGD's, `muon_momentum` Muon's, which updates the matrices of layers; all else is AdamW's then."""

    method: Method = "adamw"
    learning_rate: float = 3e-4
    schedule: Schedule = "cosine"
    warmup_steps: int = 0
    decay_from: int = 0
    decay_steps: int = 0
    final_fraction: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    momentum: float = 0.9
    muon_momentum: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if not self.decay_steps:
            return self.learning_rate
        stable = round(STABLE * self.decay_steps) if self.schedule == "wsd" and not self.decay_from else self.decay_from
        begin = max(stable, self.warmup_steps)
        done = min(max(step - begin, 0) / max(self.decay_steps - begin, 1), 1.0)
        left = 0.5 * (1.0 + math.cos(math.pi * done)) if self.schedule == "cosine" else 1.0 - done
        return self.learning_rate * (self.final_fraction + (1.0 - self.final_fraction) * left)

    def rule(self, segment: Segment) -> Method:
        return rule(self.method, segment)


def rule(method: Method, weights: Segment | ModelParameter) -> Method:
    """Return the method that updates some weights: Muon has the matrices of layers alone, and moments in 8 bits have
    matrices alone."""
    others = (method == "muon" and not weights.hidden) or (method == "adamw8bit" and not weights.decayed)
    return "adamw" if others else method


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
