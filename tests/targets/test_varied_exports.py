"""Varied plans are exported as what Megatron-LM accepts and starts, or refused by name. Optional: see megatron_venv.sh."""

from __future__ import annotations

from typing import Any

import pytest
from tests.targets.megatron_rules import broken_rules, lost_quotes
from tests.targets.run_megatron import SOURCES
from tests.targets.test_megatron_parser import expected
from tests.targets.varied import PAGE, QUESTIONS, answers, page, results

FEWEST = 46
SOUND = {
    "backend": "auto", "head_qk": 128, "head_v": 128, "groups": 8, "tensor": 2, "context": 2, "exchange": "p2p",
    "window": False, "length": 8192, "mask": False, "precision": "bf16", "fp8": False, "recipe": "delayed",
    "widths": [4096], "rows": 4096, "fsdp": False, "overlap": False, "mtp": False, "method": None, "again": None,
    "priced_fused": True, "capability": (9, 0), "vendor": "nvidia",
    "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, None),
        ({"backend": "flash", "head_qk": 192}, "FlashAttention takes no latent attention"),
        ({"capability": (7, 0), "context": 1}, "no fused attention before Ampere"),
        ({"precision": "fp32", "context": 1}, "no fused attention in 32 bits"),
        ({"backend": "unfused", "priced_fused": False}, "context parallelism needs fused attention"),
        ({"window": True}, "windows do not go round the ring"),
        ({"window": True, "exchange": "a2a"}, None),
        ({"exchange": "a2a", "groups": 2}, "heads divide by the ranks that exchange them"),
        ({"exchange": "a2a", "head_qk": 192}, "latent attention goes round the ring alone"),
        ({"mask": True, "length": 131072}, "the data loader makes no mask of the length squared"),
        ({"environment": {}}, "one hardware queue before Blackwell, and on AMD"),
        ({"environment": {}, "capability": (10, 0)}, None),
        ({"fsdp": True}, "FSDP wants several hardware queues"),
        ({"overlap": True, "vendor": "amd"}, "user buffers are NVIDIA's"),
        ({"fp8": True, "capability": (8, 0)}, "fp8 from Ada on"),
        ({"fp8": True, "recipe": "mxfp8"}, "mxfp8 on Blackwell"),
        ({"fp8": True, "recipe": "blockwise", "capability": (10, 0)}, "fp8 in blocks on Hopper"),
        ({"fp8": True, "widths": [1000]}, "fp8 products of eights and sixteens"),
        ({"mtp": True, "method": "uniform", "again": 2}, "multi-token prediction recomputes layer by layer"),
    ],
)
def test_every_rule_can_be_broken(changes: dict[str, Any], rule: str | None) -> None:
    assert broken_rules(SOUND | changes) == ([] if rule is None else [rule])


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return results()


def test_rules_quote_what_is_still_there(found: dict[str, dict[str, Any]]) -> None:
    assert not list(lost_quotes(SOURCES))


def test_varied_plans_are_accepted_and_start(found: dict[str, dict[str, Any]]) -> None:
    """None with another field, none of another architecture."""
    accepted = [each for each in answers() if each.plan is not None]
    assert len(QUESTIONS) >= len(accepted) >= FEWEST
    for each in accepted:
        assert each.plan is not None
        result = found[each.question.name]
        assert result.get("error") is None, each.question
        assert result["broken"] == [], each.question
        assert result["values"] == expected(each.plan), each.question


def test_the_page_says_so(found: dict[str, dict[str, Any]]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(found), "python -m tests.targets.varied"
