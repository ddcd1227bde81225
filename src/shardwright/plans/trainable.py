"""What of a plan `shardwright train` does not run, whatever the model.

A plan that is priced for it must not say any of this. Of one that is priced for another trainer it runs what it can:
overlap, say, is then its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import Problem
from shardwright.plans.paths import stages_at
from shardwright.plans.plan import Plan, Stage
from shardwright.plans.trainable_models import untrainable_adapters
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.job import Job
from shardwright.spec.model import Model

WHOLE_ROW_BYTES = 16
OWN_OPTIMIZERS = ("adam", "adam8bit", "muon", "sgd")


def own_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what a plan that is priced for `shardwright train` says and `train` does not do."""
    if plan.job.framework != OWN:
        return
    if plan.overlap.tensor_parallel:
        message = f"{OWN} does not overlap tensor-parallel communication with products forward"
        yield Problem("overlap.tensor_parallel", message, "write false")
    if not plan.flash_attention:
        yield Problem("flash_attention", f"{OWN} has fused attention alone", "write true")
    yield from own_job_problems(plan.model, plan.job)
    yield from untrainable_stages(plan)


def own_job_problems(model: Model, job: Job) -> Iterator[Problem]:
    """Yield what a job that is for `shardwright train` says and `train` does not do, beside options and recipes."""
    if job.framework == OWN:
        yield from untrainable_adapters(model, job)
    lacking = {
        "fp8_storage": (job.fp8_storage, "keeping weights in 8 bits alone", "leave it out"),
        "fused_loss": (job.fused_loss, "a loss that holds no logits", "leave it out"),
        "optimizer": (job.optimizer == "none", "a step without an update", "name an optimizer"),
    }
    if job.framework == OWN and job.optimizer not in (*OWN_OPTIMIZERS, "none"):
        yield Problem("job.optimizer", f"{job.optimizer} is not there in {OWN}", f"one of {', '.join(OWN_OPTIMIZERS)}")
    for name, (there, word, hint) in lacking.items():
        if there and job.framework == OWN:
            yield Problem(f"job.{name}", f"{word} is not there in {OWN}", hint)


def untrainable_stages(plan: Plan) -> Iterator[Problem]:
    """Yield which degrees of a legal plan `shardwright train` cannot run."""
    yield from _degrees(plan)
    yield from _sizes(plan)


def _degrees(plan: Plan) -> Iterator[Problem]:
    moe = any(kind.moe for kind in plan.model.kinds)
    for place, replica, stage in stages_at(plan):
        if stage.context_parallel != replica.stages[0].context_parallel:
            message = f"{stage.context_parallel}, other than in the first stage, cannot be run"
            yield Problem(f"{place}.context_parallel", message, "use the same in all stages of a replica")
        degrees = {1, stage.tensor_parallel} if plan.sequence_parallel else {stage.tensor_parallel}
        if moe and stage.expert_tensor_parallel not in degrees:
            message = f"{stage.expert_tensor_parallel} cannot be run"
            hint = f"use {stage.tensor_parallel}, or 1 with sequence_parallel"
            yield Problem(f"{place}.expert_tensor_parallel", message, hint)


def _sizes(plan: Plan) -> Iterator[Problem]:
    """Rows that tensor cores read begin at multiples of 16 bytes: in fp8, and those of experts in any precision."""
    stages = [stage for replica in plan.replicas for stage in replica.stages]
    width = 4 if plan.job.precision == "fp32" else 2
    sizes = {(size, WHOLE_ROW_BYTES // width, "experts") for stage in stages for size in _expert_sizes(plan, stage)}
    if plan.job.precision == "fp8":
        sizes |= {(size, WHOLE_ROW_BYTES, "fp8") for stage in stages for size in _dense_sizes(plan, stage)}
    for size, multiple, what in sorted(sizes):
        if size % multiple:
            message = (
                f"{what} cannot be run: a rank has {size} of a matrix's rows or columns, no multiple of {multiple}"
            )
            yield Problem("model", message, "use other degrees" if what == "experts" else "use bf16, or other degrees")


def _expert_sizes(plan: Plan, stage: Stage) -> Iterator[int]:
    for moe in (kind.moe for kind in plan.model.kinds if kind.moe):
        yield from (plan.model.hidden, moe.expert_width // stage.expert_tensor_parallel)


def _dense_sizes(plan: Plan, stage: Stage) -> Iterator[int]:
    tp = stage.tensor_parallel
    yield from (plan.model.hidden, plan.job.seq_len // stage.context_parallel)
    for kind in plan.model.kinds:
        attention = kind.attention
        if attention is None:
            continue
        keys = min(tp, attention.kv_heads)  # ranks beyond have the same heads
        yield from (attention.query_width // tp, attention.out_width // tp)
        yield from (attention.key_width // keys, attention.value_width // keys)
        if attention.latent is not None:
            yield from (attention.latent.kv_rank, attention.latent.query_rank or 0)
        yield (kind.mlp.width if kind.mlp else 0) // tp
        yield (kind.moe.shared_width if kind.moe else 0) // tp
