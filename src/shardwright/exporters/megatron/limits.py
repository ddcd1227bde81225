"""What Megatron-LM core_v0.19 cannot express or run, named with the remedy.

`arguments.py`, `transformer_config.py` and so on are files of Megatron-LM core_v0.19.2 (megatron/training and
megatron/core); the line numbers are those of the release's wheel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from shardwright.errors import Problem
from shardwright.exporters.limit import limit
from shardwright.exporters.megatron.mesh import mesh_problems
from shardwright.exporters.megatron.model import model_faults
from shardwright.exporters.trainer_options import options_of
from shardwright.plans.abilities import gpu_problems
from shardwright.plans.plan import Plan, Stage
from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.dispatcher import FLEX, flex_runs
from shardwright.spec.job import Job

FP8_MULTIPLE, MXFP8_MULTIPLE = 16, 32
GROUPED_GEMM = 8.0  # the capability from which on the export asks for grouped products of experts
# Capabilities that a recipe runs on, from one on and below another, and in words.
RECIPE_CAPABILITY = {"mxfp8": ((10.0, 12.0), "10.0 to 11.x"), "blockwise": ((9.0, 10.0), "9.x")}


def unsupported(plan: Plan) -> tuple[Problem, ...]:
    """Return why Megatron-LM cannot run `plan`, which is legal (`shardwright.plans.check`); nothing if it can."""
    asymmetric = tuple(mesh_problems(plan))
    if asymmetric:
        return asymmetric
    rules: tuple[Callable[[Plan], Iterator[Problem]], ...] = (
        lambda plan: model_faults(plan.model),
        _pipeline,
        _experts,
        _data_parallel,
        _hardware,
        _attention,
        _fp8_sizes,
        _recompute_of_mtp,
        _options,
    )
    return tuple(problem for rule in rules for problem in rule(plan))


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


def _pipeline(plan: Plan) -> Iterator[Problem]:
    """arguments.py 966-984, transformer_config.py 1984."""
    depth, interleaved = len(plan.replicas[0].stages), plan.schedule.virtual_stages > 1
    if plan.overlap.pipeline and not interleaved:
        hint = "use more virtual stages, or overlap.pipeline false"
        yield Problem("overlap.pipeline", "Megatron-LM overlaps pipeline transfers only when interleaved", hint)
    if interleaved and not plan.overlap.pipeline and depth == 2:
        hint = "set overlap.pipeline, or use 1f1b or more stages"
        yield Problem("overlap.pipeline", "two interleaved stages need overlapped transfers", hint)
    stage = first_stage(plan)
    if plan.rank_order == "tp-cp-ep-pp-dp" and depth > 1:
        dense, experts = stage.tensor_parallel * stage.context_parallel, _expert_ranks(plan)
        if dense != experts:
            message = f"needs as many ranks for experts ({experts}) as tensor times context parallel ({dense})"
            yield Problem("rank_order", message, "use rank_order tp-cp-ep-dp-pp (parallel_state.py 898)")


def _expert_ranks(plan: Plan) -> int:
    """Ranks of the grid that Megatron lays out for experts; without experts their degree is that of the rest."""
    stage = first_stage(plan)
    moe = any(kind.moe for kind in plan.model.kinds)
    return stage.expert_parallel * stage.expert_tensor_parallel if moe else stage.tensor_parallel


def _experts(plan: Plan) -> Iterator[Problem]:
    """moe_layer.py 629, transformer_config.py 2279."""
    stage = first_stage(plan)
    if not any(kind.moe for kind in plan.model.kinds):
        return
    if stage.tensor_parallel > 1 and not plan.sequence_parallel:
        message = "experts with tensor parallelism need sequence parallelism"
        yield Problem("sequence_parallel", message, "set sequence_parallel, or tensor_parallel 1")
    biased = any(kind.attention.out_bias for kind in plan.model.kinds)
    if biased and stage.expert_tensor_parallel > 1:
        path = "replicas[0].stages[0].expert_tensor_parallel"
        yield Problem(path, "biases of experts are not split", "use expert_tensor_parallel 1")


def _data_parallel(plan: Plan) -> Iterator[Problem]:
    """Offload belongs to Adam in the distributed optimizer: arguments.py 1803, optimizer_config.py 430."""
    if plan.job.document_tokens is not None:
        yield Problem("job.document_tokens", "is run by `shardwright train` alone", "leave it out")
    if plan.job.optimizer not in ("adam", "sgd"):
        yield Problem(
            "job.optimizer", f"is {plan.job.optimizer}, which is run by `shardwright train`", "use adam or sgd"
        )
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


def _attention(plan: Plan) -> Iterator[Problem]:
    """What Transformer Engine has no kernel for (2.8.0, pytorch/attention/dot_product_attention: utils.py 677,
    context_parallel.py 3742-3751)."""
    path, kinds = "replicas[0].stages[0].context_parallel", plan.model.kinds
    if first_stage(plan).context_parallel == 1:
        return
    if not plan.flash_attention:
        yield limit(path, "unfused attention takes no context parallelism", "cp=1")
    if any(kind.attention.latent and kind.attention.window for kind in kinds):
        yield limit(path, "latent attention goes round the ring, a window does not", "cp=1")


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
        sizes.add(("the attention output of a rank", kind.attention.out_width // degree))
    for what, size in sorted(sizes):
        if size % multiple:
            yield Problem("job.precision", f"fp8 needs multiples of {multiple}; {what} is {size}", "use bf16")
    rows = job.seq_len * plan.micro_batch // stage.context_parallel
    if rows % (MXFP8_MULTIPLE if job.fp8_recipe == "mxfp8" else 8):
        yield Problem(
            "job.precision", f"fp8 cannot split {rows} tokens of a rank evenly", "use bf16, or another length"
        )


def _recompute_of_mtp(plan: Plan) -> Iterator[Problem]:
    """multi_token_prediction.py 1415."""
    recompute = first_stage(plan).recompute
    if plan.model.mtp_layers and recompute.method == "uniform" and recompute.layers != 1:
        path = "replicas[0].stages[0].recompute.layers"
        yield Problem(path, "with multi-token prediction uniform recomputation goes layer by layer", "write 1")


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
    if plan.job.fused_loss:
        message = "fuses the output projection with the loss, which core_v0.19 does not (model_parallel_config.py 325)"
        yield Problem("job.fused_loss", message, "leave it out")
    if "grad_reduce" in options and plan.optimizer.sharding in ("zero2", "zero3"):
        message = f"is {options['grad_reduce']}; FSDP has types of its own"
        yield limit("job.options.grad_reduce", message, "grad_reduce=default")
