"""Options of the trainer from Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwright.importers.megatron.flags import Flags
from shardwright.plans.plan import OptimizerPlan
from shardwright.spec.catalog.frameworks import MEGATRON, framework_rows
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.options import MODULES, STATE, Module, Options, ordered

DISPATCHERS = {"alltoall_seq": "alltoall"}
PLAIN = "with FSDP or an offloaded optimizer its types are priced as fp32"


def options_of(flags: Flags, model: Model, job: Job, optimizer: OptimizerPlan) -> Options:
    """Return the options that arguments say and that their framework is priced by. Modules that the model has not are
    left out: they recompute nothing."""
    able = framework_rows()[job.framework]["options"].split()
    return Options(**{name: value for name, value in _said(flags, model, job, optimizer) if name in able})


def recomputes(flags: Flags, model: Model) -> bool:
    """Return whether selective recomputation repeats anything of the model."""
    return bool(set(_modules(flags)) & set(_present(model)))


def unpriced(flags: Flags, job: Job, optimizer: OptimizerPlan) -> Iterator[str]:
    """Yield what the arguments say of types that the plan does not."""
    if flags["--use-precision-aware-optimizer"] and job.precision in ("bf16", "fp8") and not _aware(optimizer):
        yield from (f"{_flag(name)} ({PLAIN})" for name in STATE if flags[_flag(name)] != "fp32")


def _said(flags: Flags, model: Model, job: Job, optimizer: OptimizerPlan) -> Iterator[tuple[str, Any]]:
    if modules := set(_modules(flags)) & set(_present(model)):
        yield "recompute_modules", ordered(modules)
    if job.precision in ("bf16", "fp8"):
        aware = flags["--use-precision-aware-optimizer"] and _aware(optimizer)
        if flags["--grad-reduce-in-bf16"] and optimizer.sharding in ("none", "zero1"):
            yield "grad_reduce", "bf16"
        if aware:
            yield from ((name, flags[_flag(name)]) for name in STATE)
    if (
        job.framework == MEGATRON and not flags["--cross-entropy-loss-fusion"]
    ):  # a fused one is what plans that say none are priced and exported with
        yield "loss", "unfused"
    if any(kind.moe for kind in model.kinds):
        if flags["--moe-enable-deepep"]:
            yield "dispatcher", "flex"
        else:
            name = flags["--moe-token-dispatcher-type"]
            yield "dispatcher", DISPATCHERS.get(name, name)


def _aware(optimizer: OptimizerPlan) -> bool:
    return optimizer.sharding == "zero1" and optimizer.offload == 0


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}-dtype"


def _modules(flags: Flags) -> list[str]:
    """Return the modules that selective recomputation repeats, also of an older argument's name."""
    named = (flags["--recompute-modules"] or "core_attn").replace(",", " ").split()
    return [*named, *(["moe"] if flags["--moe-layer-recompute"] else [])]


def _present(model: Model) -> Iterator[Module]:
    """Yield the modules that a model has."""
    kinds = model.kinds
    there = {
        "mla_up_proj": any(kind.latent for kind in kinds),
        "mlp": any(kind.mlp for kind in kinds),
        "moe": any(kind.moe for kind in kinds),
        "moe_act": any(kind.moe for kind in kinds),
        "shared_experts": any(kind.moe and kind.moe.shared_width for kind in kinds),
    }
    return (module for module in MODULES if there.get(module, True))
