"""The account of memory, messages and FLOPs against rehearsals of drawn plans, where no stand-in for a kernel that
allocates is in them. A night draws 40 of its own (`SHARDWRIGHT_NIGHT`, a number; 0 where it is not said).
"""

from __future__ import annotations

import importlib.util
import os

import pytest
from tests.rehearsal.draws import DRAWS, NEEDS, PYTHONS, SKIPPED, one_rank, setting
from tests.rehearsal.tiny import require_guard

from shardwright.plans.plan import Plan
from shardwright.rehearsal.document import messages

NEAR = 0.02
A_NIGHT = 40
NIGHT = int(os.environ.get("SHARDWRIGHT_NIGHT", "0"))


def difference(plan: Plan, seed: int, python: str | None = None) -> float:
    rank = one_rank(plan, seed, python)
    for message in messages(rank):
        if message["expected_bytes"] is not None and plan.job.framework == "fsdp":
            assert message["bytes"] == pytest.approx(message["expected_bytes"], rel=NEAR), setting(plan)
    return rank.difference


@pytest.mark.parametrize(
    ("trainer", "seed"),
    [("fsdp", 108), ("train", 1), ("adapters", 15), ("whole", 37), ("several kernels", 4)],
)
def test_the_account_agrees_with_a_rehearsal(trainer: str, seed: int) -> None:
    """Of adapters beside frozen weights, whose gradients wait whole through two micro-batches, under ZeRO-2; of
    1,024 tokens of a large vocabulary, whose embedding and head are whole one by one, under ZeRO-3; of adapters beside
    some matrices, on a stage of the embedding and one layer further on; of four copies, whose gradients are summed
    in buckets; and of few tokens, where the update is the peak, of several kernels."""
    require_guard()
    pytest.importorskip("transformers")
    if importlib.util.find_spec("peft") is None:  # to import it would take as long as a rehearsal
        pytest.skip("peft is not installed")
    assert abs(difference(DRAWS[trainer](seed), seed)) < NEAR


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", dict.fromkeys([*DRAWS, *SKIPPED]))
def test_of_forty_drawn_nine_in_ten_are_near(trainer: str) -> None:
    if trainer in SKIPPED:
        pytest.skip(f"{trainer} {SKIPPED[trainer]}")
    if trainer in PYTHONS and PYTHONS[trainer] is None:
        pytest.skip(f"SHARDWRIGHT_{trainer.upper()}_PYTHON names no interpreter with {trainer} (tests/targets)")
    require_guard()
    for name in NEEDS.get(trainer, ()):
        pytest.importorskip(name)
    distances = {}
    for seed in range(NIGHT * A_NIGHT, (NIGHT + 1) * A_NIGHT):
        plan = DRAWS[trainer](seed)
        distances[f"{seed}: {setting(plan)}"] = abs(difference(plan, seed, PYTHONS.get(trainer)))
    far = {words: size for words, size in distances.items() if size > NEAR}
    assert len(far) <= 0.1 * A_NIGHT, far
