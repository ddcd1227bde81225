"""Which framework ran a published run, and what that framework does where the run does not say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from shardwright.spec.assumption import Assumption
from shardwright.spec.catalog.frameworks import figures, framework_rows
from shardwright.spec.job import Framework
from shardwright.validation.runs import PublishedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Defaults of a framework: whether attention is fused, what is overlapped and sharded, whether stages of a
    pipeline are balanced by their weights, whether users recompute activations as soon as memory is short (else they
    look for another layout first), and then `whole_layers` or nothing."""

    framework: Framework
    flash: bool
    sequence_parallel: bool
    overlap_tp: bool
    overlap_grad: bool
    overlap_param: bool
    sharding: int
    balanced: bool
    recomputes: bool
    whole_layers: bool


def framework_of(run: PublishedRun, guesses: list[Assumption]) -> Framework:
    """Return the framework of a run: the first whose pattern is in the name. Megatron in fp16 is from before bf16 and
    FlashAttention, torchtitan without compilation is plain FSDP, and so is taken what is unknown."""
    name = run.framework.casefold()
    for framework, row in framework_rows().items():
        if re.search(row["pattern"], name):
            if framework == "megatron" and run.precision == "fp16":
                return "megatron-2021"
            uncompiled = framework == "torchtitan" and run.noted.eager
            return "fsdp" if uncompiled else framework
    taken: Framework = "fsdp" if name else "megatron"
    guesses.append(Assumption("framework", f"{taken}"))
    return taken


@cache
def habits_of(framework: Framework) -> Habits:
    """Return what a framework does by default."""
    return figures(Habits, framework_rows()[framework])
