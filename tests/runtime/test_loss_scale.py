"""The scale of the loss in fp16 from step to step."""

from __future__ import annotations

from shardwright.runtime.state.loss_scale import GROWTH_STEPS, LossScale


def test_the_scale_halves_on_overflow_and_doubles_after_good_steps() -> None:
    scale = LossScale().after(finite=False)
    assert scale == LossScale(value=2.0**15, skipped=1)
    for _ in range(GROWTH_STEPS - 1):
        scale = scale.after(finite=True)
    assert scale == LossScale(value=2.0**15, good_steps=1_999, skipped=1)
    assert scale.after(finite=False) == LossScale(value=2.0**14, skipped=2)
    assert scale.after(finite=True) == LossScale(value=2.0**16, skipped=1)
