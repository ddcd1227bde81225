"""What GPUs and links can do at all, whatever software runs on them: one answer for search, check and exporters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from shardwright.errors import Problem
from shardwright.plans.plan import Plan
from shardwright.spec.catalog.frameworks import MEGATRON, OWN, framework_has, framework_names
from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.job import FLEX, HYBRID, Job, Precision, flex_runs

# Capabilities of CUDA that a framework runs a recipe on, from one on and below another, and in words.
RECIPE_CAPABILITY = {
    (MEGATRON, "mxfp8"): (10.0, 12.0, "10.0 to 11.x"),
    (MEGATRON, "blockwise"): (9.0, 10.0, "9.x"),
    ("torchtitan", "mxfp8"): (10.0, inf, "10.0 or more"),
}
OF_CUDA = {MEGATRON: "Megatron-LM", "torchtitan": "torchtitan", OWN: "`train`"}  # written for it, and ROCm's form of it
ELSEWHERE = {MEGATRON: "delayed or tensorwise", "torchtitan": "tensorwise"}  # what runs on all GPUs that compute in fp8
FLASH_CAPABILITY = 8.0  # Ampere: FlashAttention-2's requirement (github.com/Dao-AILab/flash-attention, README)


def fused_attention_runs(gpu: Gpu, precision: Precision) -> bool:
    """Whether FlashAttention has a kernel: from Ampere on, in 16 bits and less. Other makers have kernels of their own,
    in the same precisions."""
    return precision != "fp32" and gpu.capability >= FLASH_CAPABILITY


def flash_attention_runs(gpu: Gpu, job: Job) -> bool:
    """Whether the job's framework has fused attention on a GPU: its own kernels, or those of FlashAttention."""
    return framework_has(job.framework, "own_kernels") or fused_attention_runs(gpu, job.precision)


def tensor_parallel_overlaps(pool: NodePool, job: Job) -> bool:
    """Whether the job's framework can run tensor-parallel communication beside products: `train` does not, and user
    buffers of Transformer Engine are written by peers, over links that join GPUs directly."""
    return job.framework != OWN and pool.gpu.link_domain > 1


def job_problems(gpu: Gpu, job: Job) -> Iterator[Problem]:
    """Yield what of a job the trainers of its framework cannot run on a GPU, whatever the plan.

    That is all of it where they are written for CUDA; recipes of Transformer Engine (transformer_engine/pytorch/fp8.py
    48-72 of 2.8.0) and of torchtitan (torchtitan/components/quantization/mx.py 70 of 0.3.0); and DeepEP (fused_a2a.py
    of Megatron-LM core_v0.19.2 and the README of DeepEP)."""
    if gpu.vendor == "intel" and job.framework in OF_CUDA:
        message = f"{gpu.name} has neither CUDA nor ROCm, which {OF_CUDA[job.framework]} is written for"
        yield Problem("cluster", message, "use `framework=fsdp`, or `framework=deepspeed`")
    needed = RECIPE_CAPABILITY.get((job.framework, job.fp8_recipe or ""))
    judged = gpu.vendor == "nvidia" or (job.framework != MEGATRON and gpu.vendor != "custom")
    if needed is not None and judged:
        least, below, which = needed
        if gpu.vendor != "nvidia" or not least <= gpu.capability < below:
            message = f"{job.fp8_recipe} needs compute capability {which}, {gpu.name} has {gpu.compute_capability}"
            yield Problem("job.fp8_recipe", message, f"use {ELSEWHERE[job.framework]}")
    if job.framework == MEGATRON and job.options.dispatcher == "flex" and not flex_runs([gpu], job):
        least, which = (HYBRID, "HybridEP, which pads to a capacity") if job.options.padded else (FLEX[0], "DeepEP")
        message = f"is flex ({which}), which needs NVIDIA GPUs of capability {least:g} to below {FLEX[1]:g}"
        yield Problem("job.options.dispatcher", message, "use alltoall")


def computes_weights_apart(job: Job) -> bool:
    """Whether the job's framework can compute gradients of weights apart from those of activations (zero bubble): of
    plain products, which fp8 and adapters are not."""
    return framework_has(job.framework, "weights_apart") and job.precision != "fp8" and not job.adapters


def makers(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return the makers of GPUs: no library of collectives joins those of several. A GPU that the catalogue does not
    know counts as of any."""
    return tuple(sorted({gpu.vendor for gpu in gpus} - {"custom"}))


def framework_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what the framework that a uniform plan is priced for cannot run on its GPUs. Plans that are not uniform are
    the exporters' to judge."""
    if not plan.uniform:
        return
    name = plan.stages[0].gpu
    pool = plan.cluster.pool_of.get(name)
    if pool is not None:
        yield from gpu_problems(plan, pool)


def gpu_problems(plan: Plan, pool: NodePool) -> Iterator[Problem]:
    """Yield what the framework that a plan is priced for cannot run on the GPUs of a pool."""
    job, name = plan.job, pool.gpu.name
    if plan.flash_attention and not flash_attention_runs(pool.gpu, job):
        message = f"FlashAttention needs 16 bits and compute capability 8.0; this is {job.precision} on {name}"
        able = sorted(name for name in framework_names() if framework_has(name, "own_kernels"))
        hint = f"write false, or name a framework with kernels of its own: {', '.join(able)}"
        yield Problem("flash_attention", message, hint)
    if plan.overlap.tensor_parallel and not tensor_parallel_overlaps(pool, job):
        message = f"needs GPUs that write to each other's memory; those of {name} are joined by {pool.gpu.link}"
        yield Problem("overlap.tensor_parallel", message, "write false")
