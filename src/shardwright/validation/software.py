"""Which framework ran a published run, and what that framework does where the run does not say."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardwright.spec.job import Framework
from shardwright.validation.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Defaults of a framework: whether attention is fused, what is overlapped and sharded, whether stages of a
    pipeline are balanced by their weights, and whether users recompute activations as soon as memory is short (else
    they look for another layout first)."""

    framework: Framework
    flash: bool
    sequence_parallel: bool
    overlap_tp: bool
    overlap_grad: bool
    overlap_param: bool
    sharding: int
    balanced: bool = False
    recomputes: bool = True


HABITS: dict[Framework, Habits] = {
    habits.framework: habits
    for habits in (
        Habits(
            framework="megatron",
            flash=True,
            sequence_parallel=True,
            overlap_tp=False,
            overlap_grad=True,
            overlap_param=True,
            sharding=1,
            recomputes=False,
        ),
        Habits(
            framework="megatron-2021",
            flash=False,
            sequence_parallel=False,
            overlap_tp=False,
            overlap_grad=False,
            overlap_param=False,
            sharding=0,
        ),
        Habits(
            framework="torchtitan",
            flash=True,
            sequence_parallel=True,
            overlap_tp=False,
            overlap_grad=True,
            overlap_param=True,
            sharding=3,
        ),
        Habits(
            framework="fsdp",
            flash=True,
            sequence_parallel=False,
            overlap_tp=False,
            overlap_grad=True,
            overlap_param=True,
            sharding=3,
        ),
        Habits(
            framework="deepspeed",
            flash=True,
            sequence_parallel=False,
            overlap_tp=False,
            overlap_grad=True,
            overlap_param=True,
            sharding=3,
        ),
        Habits(
            framework="nanotron",
            flash=True,
            sequence_parallel=True,
            overlap_tp=False,
            overlap_grad=True,
            overlap_param=False,
            sharding=1,
            balanced=True,
        ),
        Habits(
            framework="jax",
            flash=True,
            sequence_parallel=True,
            overlap_tp=True,
            overlap_grad=True,
            overlap_param=True,
            sharding=3,
        ),
        Habits(
            framework="eager",
            flash=False,
            sequence_parallel=False,
            overlap_tp=False,
            overlap_grad=True,
            overlap_param=True,
            sharding=0,
        ),
    )
}

# The first pattern found in the framework's name decides.
NAMES: tuple[tuple[str, Framework], ...] = (
    (r"torchtitan", "torchtitan"),
    (r"nanotron", "nanotron"),
    (r"maxtext|paxml|pax\b|jax|alpa", "jax"),
    (r"megatron-2021|megatron-deepspeed|deepspeed-3d|deepspeed\+megatron", "megatron-2021"),
    (r"hf-deepspeed|deepspeed|zero", "deepspeed"),
    (r"hugging ?face|accelerate|ddp|^eager$", "eager"),
    (r"fsdp|foundry|composer|automodel|colossal|lightning|axolotl", "fsdp"),
    (r"megatron|nemo|mcore|bridge|transformer.?engine", "megatron"),
)


def framework_of(run: Run, guesses: list[str]) -> Framework:
    """Return the framework of a run. Megatron in fp16 is from before bf16 and FlashAttention, torchtitan without
    compilation is plain FSDP, and so is taken what is unknown."""
    name = run.framework.casefold()
    for pattern, framework in NAMES:
        if re.search(pattern, name):
            if framework == "megatron" and run.precision == "fp16":
                return "megatron-2021"
            uncompiled = framework == "torchtitan" and re.search(r"\beager\b", run.notes)
            return "fsdp" if uncompiled else framework
    taken: Framework = "fsdp" if name else "megatron"
    guesses.append(f"framework: {taken}")
    return taken


def habits_of(framework: Framework) -> Habits:
    """Return what a framework does by default."""
    return HABITS[framework]
