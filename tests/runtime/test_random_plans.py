"""Training under random plans equals that of one process: a few in every run, 2,000 at night (`-m nightly`, an hour)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.nightly import nightly
from tests.runtime.random_plans import MOST_GPUS, Drawn, drawn, hybrid, odd, sharing
from tests.runtime.trained_plans import case_of, require_like_one_process, runnable
from tests.runtime.workers import run_cases

from shardwright.plans.check import check
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.limits import unrunnable

PLANS, TOGETHER = 2_000, 100  # seeds from 0, and how many of them run in the same processes
# How many of their plans were legal when they were first drawn, and how many of these `shardwright train` ran.
LEGAL, TRAINABLE = 1_401, 1_297
# Unequal expert-parallel degrees in and between replicas (56, 82), stages without layers (82), a head without parameters
# (24), uneven FSDP (72), three virtual stages (87), context parallelism (56), tensor parallelism 1 and 4 and zero bubble
# (108).
SAMPLE = (24, 56, 72, 82, 87, 108)
# Attention and Mamba-2 side by side under uneven FSDP (55), and beside Kimi delta attention with virtual stages (99) and
# zero bubble (130).
HYBRIDS = (55, 99, 130)
# Tensor parallelism 2 beside 3 with virtual stages, and 1, 2 and 3 under a sharded optimizer.
ODD = (140, 287)
# Blocks that layers share, in turns and alone: under uneven FSDP (43), gradients in parts beside whole inputs alone (20),
# weights in parts and sequence parallelism (152).
SHARING = (20, 43, 152)


@pytest.mark.parametrize("seeds", [SAMPLE, *nightly(range(i, i + TOGETHER) for i in range(0, PLANS, TOGETHER))])
def test_training_under_random_plans_equals_that_of_one_process(seeds: Sequence[int]) -> None:
    legal = [seed for seed in seeds if runnable(drawn(seed))]
    assert seeds is not SAMPLE or legal == list(SAMPLE)
    assert all(layout_of(drawn(seed)).world_size == drawn(seed).gpus for seed in legal)
    outcomes = run_cases([case_of(seed, drawn(seed)) for seed in legal], MOST_GPUS)
    for seed in legal:
        require_like_one_process(seed, drawn(seed), outcomes[str(seed)])


@pytest.mark.parametrize(
    ("model_of", "seeds"),
    [
        (hybrid, HYBRIDS),
        (odd, ODD),
        (sharing, SHARING),
        *nightly((kind, range(i, i + TOGETHER)) for kind in (hybrid, odd, sharing) for i in range(0, 400, TOGETHER)),
    ],
)
def test_training_other_models_under_random_plans_equals_that_of_one_process(
    model_of: Drawn, seeds: Sequence[int]
) -> None:
    legal = [seed for seed in seeds if runnable(drawn(seed, model_of))]
    assert seeds not in (HYBRIDS, ODD, SHARING) or legal == list(seeds)
    outcomes = run_cases([case_of(seed, drawn(seed, model_of)) for seed in legal], MOST_GPUS)
    for seed in legal:
        require_like_one_process(seed, drawn(seed, model_of), outcomes[str(seed)])


def test_no_fewer_plans_are_legal_than_there_were() -> None:
    """What is wrong with a plan that was legal is to be mended, not refused."""
    plans = [drawn(seed) for seed in range(PLANS)]
    others = [replace(plan, job=replace(plan.job, framework="megatron")) for plan in plans]
    assert sum(not check(plan) for plan in others) >= LEGAL
    assert sum(not check(plan) for plan in plans) >= TRAINABLE
    assert not any(unrunnable(plan) for plan in plans if not check(plan))
