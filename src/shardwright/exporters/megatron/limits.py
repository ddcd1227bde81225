"""What Megatron-LM core_v0.19 cannot express or run, named with the remedy.

It has one mesh of ranks: degrees, layers and recomputation are the same in every replica. GPU types may differ by
stage, where machines can be started in the order of their ranks. `arguments.py`, `transformer_config.py` and so on are
files of Megatron-LM core_v0.19.2 (megatron/training and megatron/core); the line numbers are those of the release's
wheel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from shardwright.errors import Problem
from shardwright.exporters.exported import limit
from shardwright.exporters.support.refusals import refusals
from shardwright.exporters.support.traits import options_of
from shardwright.plans.abilities import gpu_problems
from shardwright.plans.mesh import hosts, one_recompute, shape
from shardwright.plans.plan import DEGREES, Plan, Recompute, Replica, Stage, stages_at
from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.job import FLEX, Job, flex_runs

TARGET = "megatron"
FP8_MULTIPLE, MXFP8_MULTIPLE = 16, 32
GROUPED_GEMM = 8.0  # the capability from which on the export asks for grouped products of experts
# Capabilities that a recipe runs on, from one on and below another, and in words.
RECIPE_CAPABILITY = {"mxfp8": ((10.0, 12.0), "10.0 to 11.x"), "blockwise": ((9.0, 10.0), "9.x")}

HINT = "plan with --exportable-to megatron"


def unsupported(plan: Plan) -> tuple[Problem, ...]:
    """Return why Megatron-LM cannot run `plan`, which is legal (`shardwright.plans.check`); nothing if it can."""
    return tuple(mesh_problems(plan)) or (*refusals(plan, TARGET), *beyond_the_matrix(plan))


def beyond_the_matrix(plan: Plan) -> Iterator[Problem]:
    """Yield the limits that hang on what machines can do, or on several settings and sizes together."""
    for rule in CONDITIONS.values():
        yield from rule(plan)


def first_stage(plan: Plan) -> Stage:
    """Return the stage whose degrees are those of all."""
    return plan.replicas[0].stages[0]


def pools_of(plan: Plan) -> tuple[NodePool, ...]:
    """Return machines of each GPU type of a plan, those that come first in the cluster."""
    first = {pool.gpu.name: pool for pool in reversed(plan.cluster.pools)}
    return tuple(first[name] for name in plan.gpus_by_type)


def least_capability(plan: Plan) -> float:
    """Return the least CUDA compute capability of the GPUs of a plan, infinite where these have none."""
    return min(pool.gpu.capability for pool in pools_of(plan))


def _offload(plan: Plan) -> Iterator[Problem]:
    """Offload belongs to Adam in the distributed optimizer: arguments.py 1803, optimizer_config.py 430."""
    if plan.optimizer.offload > 0 and plan.job.optimizer != "adam":
        yield Problem("optimizer.offload", f"is not there for {plan.job.optimizer}", "use adam, or offload 0")


def _hardware(plan: Plan) -> Iterator[Problem]:
    job = replace(plan.job, framework="megatron")
    for pool in pools_of(plan):
        yield from gpu_problems(replace(plan, job=job), pool)
        yield from _recipe(job, pool.gpu)


def _recipe(job: Job, gpu: Gpu) -> Iterator[Problem]:
    """transformer_engine/pytorch/fp8.py 48-72 (2.8.0)."""
    runs, which = RECIPE_CAPABILITY.get(job.fp8_recipe or "", ((0.0, float("inf")), ""))
    if gpu.vendor == "nvidia" and not runs[0] <= gpu.capability < runs[1]:
        message = f"{job.fp8_recipe} needs compute capability {which}, {gpu.name} has {gpu.compute_capability}"
        yield Problem("job.fp8_recipe", message, "use delayed or tensorwise")


def _fp8_sizes(plan: Plan) -> Iterator[Problem]:
    """Transformer Engine's FP8 GEMMs take rows in eights and columns in sixteens (32 for mxfp8)."""
    job, stage = plan.job, first_stage(plan)
    if job.precision != "fp8":
        return
    multiple = MXFP8_MULTIPLE if job.fp8_recipe == "mxfp8" else FP8_MULTIPLE
    degree = stage.tensor_parallel
    sizes = {("model.hidden", plan.model.hidden)}
    for kind in plan.model.kinds:
        if kind.mlp:
            sizes.add(("the feed-forward width of a rank", kind.mlp.width // degree))
        if kind.moe:
            sizes.add(("the expert width of a rank", kind.moe.expert_width // stage.expert_tensor_parallel))
        if kind.attention:
            sizes.add(("the attention output of a rank", kind.attention.out_width // degree))
    for what, size in sorted(sizes):
        if size % multiple:
            yield Problem("job.precision", f"fp8 needs multiples of {multiple}; {what} is {size}", "use bf16")
    rows = job.seq_len * plan.micro_batch // stage.context_parallel
    if rows % (MXFP8_MULTIPLE if job.fp8_recipe == "mxfp8" else 8):
        yield Problem(
            "job.precision", f"fp8 cannot split {rows} tokens of a rank evenly", "use bf16, or another length"
        )


def _options(plan: Plan) -> Iterator[Problem]:
    """transformer_config.py 1784, fused_a2a.py and the README of DeepEP, distributed_data_parallel_config.py 264."""
    options, stage = options_of(plan), first_stage(plan)
    if "moe_act" in options.get("recompute_modules", "") and least_capability(plan) < GROUPED_GEMM:
        message = "has moe_act, which needs grouped products of experts"
        yield limit("job.options.recompute_modules", message, "recompute_modules=default")
    if options.get("dispatcher") == "flex":
        if stage.expert_parallel * stage.expert_tensor_parallel == 1:
            yield limit("job.options.dispatcher", "is flex, but experts are not split", "dispatcher=alltoall")
        elif not flex_runs(pool.gpu for pool in pools_of(plan)):
            message = f"is flex (DeepEP), which needs NVIDIA GPUs of capability {FLEX[0]:g} to below {FLEX[1]:g}"
            yield limit("job.options.dispatcher", message, "dispatcher=alltoall")
    if "grad_reduce" in options and plan.optimizer.sharding in ("zero2", "zero3"):
        message = f"is {options['grad_reduce']}; FSDP has types of its own"
        yield limit("job.options.grad_reduce", message, "grad_reduce=default")


CONDITIONS: Mapping[str, Callable[[Plan], Iterator[Problem]]] = {
    "offload of other optimizers": _offload,
    "GPUs": _hardware,
    "sizes in fp8": _fp8_sizes,
    "options with GPUs and degrees": _options,
}
"""What no row of the matrix says alone, by the value of the subject `condition` that stands for it there."""


def mesh_problems(plan: Plan) -> Iterator[Problem]:
    """Yield why the replicas and stages of a legal plan are no mesh of equal ranks."""
    if plan.layered:
        yield Problem("schedule", "is uneven FSDP; Megatron-LM gives every GPU equal shares", HINT)
    elif len({shape(replica) for replica in plan.replicas}) > 1:
        shapes = "; ".join(_replica_words(replica) for replica in plan.replicas)
        yield Problem("replicas", f"Megatron-LM needs equal replicas; these differ: {shapes}", HINT)
    elif unlike := tuple(_unlike_stages(plan)):
        yield from unlike
    else:
        yield from _machines(plan)


def _unlike_stages(plan: Plan) -> Iterator[Problem]:
    names = DEGREES if one_recompute(plan) is not None else (*DEGREES, "recompute")
    first = plan.replicas[0].stages[0]
    for path, _, stage in stages_at(plan):
        for name in names:
            if getattr(stage, name) != getattr(first, name):
                value, other = _words(stage, name), _words(first, name)
                yield Problem(
                    f"{path}.{name}", f"differs from stage 0's ({value} against {other}); Megatron-LM has one", HINT
                )


def _machines(plan: Plan) -> Iterator[Problem]:
    if not plan.uniform and hosts(plan) is None:
        message = "cannot be numbered machine by machine: some machine would hold ranks that do not follow each other"
        yield Problem("replicas", message, HINT)


def _replica_words(replica: Replica) -> str:
    gpus = " and ".join(dict.fromkeys(stage.gpu for stage in replica.stages))
    stages, batches = len(replica.stages), replica.micro_batches
    return (
        f"{replica.count} with {stages} stage{'s' * (stages > 1)} on {gpus} and "
        f"{batches} micro-batch{'es' * (batches > 1)}"
    )


def _words(stage: Stage, name: str) -> str:
    value = getattr(stage, name)
    if not isinstance(value, Recompute):
        return str(value)
    return " ".join(str(word) for word in (value.granularity, value.method, value.layers) if word is not None)
