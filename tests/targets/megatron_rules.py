"""What Megatron-LM and Transformer Engine refuse only when they run, beside what the parser refuses: a table.

Each rule is judged on facts that the parsed arguments give (`check_megatron.facts`), the capability of the plan's GPUs and
its environment, and quotes the line it comes from. Transformer Engine is 2.8.0, Megatron-LM core_v0.19.2; files are those
of their wheels, and the check looks whether the quotes are still there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Facts = Mapping[str, Any]
ATTENTION = "transformer_engine/pytorch/attention/dot_product_attention"
LARGEST_MASK = 2.0**30  # bytes of a sample
LOW_BITS = ("bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Rule:
    """`broken` says of a case whether it would end at the `quote` in a `file`, or leave attention without a kernel."""

    name: str
    file: str
    quote: str
    broken: Callable[[Facts], bool]


def _has_no_kernel(facts: Facts) -> bool:
    """With context parallelism unfused attention is off; so there must be FlashAttention or cuDNN's."""
    fused = facts["backend"] != "unfused" and facts["capability"] >= (8, 0) and facts["precision"] in LOW_BITS
    return facts["context"] > 1 and not fused


def _exchanges(facts: Facts, *allowed: str) -> bool:
    return facts["context"] == 1 or facts["exchange"] in allowed


def _queue(facts: Facts) -> bool:
    wanted = facts["capability"] < (10, 0) and facts["tensor"] * facts["context"] > 1 and not facts["fsdp"]
    return bool(wanted and facts["environment"].get("CUDA_DEVICE_MAX_CONNECTIONS") != "1")


def _fp8(recipe: str, low: tuple[int, int], high: tuple[int, int]) -> Callable[[Facts], bool]:
    def broken(facts: Facts) -> bool:
        asked = facts["fp8"] and (not recipe or facts["recipe"] == recipe)
        return bool(asked and not low <= facts["capability"] < high)

    return broken


ANY = (99, 0)
RULES = (
    Rule(
        "FlashAttention takes no latent attention",
        f"{ATTENTION}/utils.py",
        "Disabling FlashAttention 2 as it does not support MLA.",
        lambda facts: facts["backend"] == "flash" and facts["head_qk"] != facts["head_v"],
    ),
    Rule(
        "no fused attention before Ampere",
        f"{ATTENTION}/utils.py",
        "Disabling FusedAttention for compute capability < sm80",
        lambda facts: facts["priced_fused"] and facts["capability"] < (8, 0),
    ),
    Rule(
        "no fused attention in 32 bits",
        f"{ATTENTION}/utils.py",
        "Disabling FusedAttention for unsupported qkv_dtype",
        lambda facts: facts["priced_fused"] and facts["precision"] not in LOW_BITS,
    ),
    Rule(
        "context parallelism needs fused attention",
        f"{ATTENTION}/utils.py",
        "Disabling UnfusedDotProductAttention as it does not support context parallelism",
        _has_no_kernel,
    ),
    Rule(
        "windows do not go round the ring",
        f"{ATTENTION}/context_parallel.py",
        "Context parallelism does not support sliding window attention with {cp_comm_type=}!",
        lambda facts: facts["window"] and not _exchanges(facts, "a2a", "all_gather"),
    ),
    Rule(
        "latent attention goes round the ring alone",
        f"{ATTENTION}/context_parallel.py",
        "Context parallelism does not support MLA with {cp_comm_type=}!",
        lambda facts: facts["head_qk"] != facts["head_v"] and not _exchanges(facts, "p2p", "a2a+p2p"),
    ),
    Rule(
        "heads divide by the ranks that exchange them",
        f"{ATTENTION}/context_parallel.py",
        "The number of attention heads needs to be divisible by CP size!",
        lambda facts: facts["exchange"] == "a2a" and facts["groups"] // facts["tensor"] % facts["context"] > 0,
    ),
    Rule(
        "the data loader makes no mask of the length squared",
        "megatron/core/datasets/gpt_dataset.py",
        "torch.ones((seq_length, seq_length), device=data.device)",
        lambda facts: facts["mask"] and 4.0 * facts["length"] ** 2 > LARGEST_MASK,
    ),
    Rule(
        "one hardware queue before Blackwell, and on AMD",
        "megatron/training/arguments.py",
        "CUDA_DEVICE_MAX_CONNECTIONS requirement no longer exists since the Blackwell architecture",
        _queue,
    ),
    Rule(
        "FSDP wants several hardware queues",
        "megatron/training/arguments.py",
        "FSDP requires CUDA_DEVICE_MAX_CONNECTIONS > 1 or unset.",
        lambda facts: facts["fsdp"] and facts["environment"].get("CUDA_DEVICE_MAX_CONNECTIONS") == "1",
    ),
    Rule(
        "user buffers are NVIDIA's",
        "transformer_engine/pytorch/module/base.py",
        "def initialize_ub(",
        lambda facts: facts["overlap"] and facts["vendor"] != "nvidia",
    ),
    Rule(
        "fp8 from Ada on",
        "transformer_engine/pytorch/fp8.py",
        "Device compute capability 8.9 or higher required for FP8 execution.",
        _fp8("", (8, 9), ANY),
    ),
    Rule(
        "mxfp8 on Blackwell",
        "transformer_engine/pytorch/fp8.py",
        "Device compute capability 10.0 or higher required for MXFP8 execution.",
        _fp8("mxfp8", (10, 0), (12, 0)),
    ),
    Rule(
        "fp8 in blocks on Hopper",
        "transformer_engine/pytorch/fp8.py",
        "FP8 block scaled GEMM requires Hopper and CUDA >= 12.9.",
        _fp8("blockwise", (9, 0), (10, 0)),
    ),
    Rule(
        "fp8 products of eights and sixteens",
        "transformer_engine/pytorch/utils.py",
        "by 8 and the last dimension to be divisible by 16, but got tensor with",
        lambda facts: facts["fp8"] and (any(size % 16 for size in facts["widths"]) or facts["rows"] % 8 > 0),
    ),
    Rule(
        "multi-token prediction recomputes layer by layer",
        "megatron/core/transformer/multi_token_prediction.py",
        "recompute_num_layers must be 1 for MTP recompute",
        lambda facts: facts["mtp"] and facts["method"] == "uniform" and facts["again"] != 1,
    ),
)


def broken_rules(facts: Facts) -> list[str]:
    """Return the names of the rules that a case breaks."""
    return [rule.name for rule in RULES if rule.broken(facts)]


def lost_quotes(packages: Path) -> Iterator[str]:
    """Yield the rules whose quote is not in the file any more that it comes from, below `packages`."""
    for rule in RULES:
        path = packages / rule.file
        if not path.exists() or rule.quote not in path.read_text(encoding="utf-8"):
            yield f"{rule.name}: {rule.file}"


def line_of(rule: Rule, packages: Path) -> int:
    """Return the line of a rule's quote."""
    lines = (packages / rule.file).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if rule.quote in line)
