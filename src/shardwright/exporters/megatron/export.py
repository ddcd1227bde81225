"""A plan as the arguments of Megatron-LM's `pretrain_gpt.py`, or `pretrain_hybrid.py`, and what to change among them to
run another plan.

Written for core_v0.19.x, whose names and defaults these are. The pipeline is always given as a layout string: it alone
can say any split, and excludes the other ways to say one.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping

from shardwright.errors import SpecError, reject
from shardwright.exporters.megatron.layout import layer_counts_of_ranges, layout_text
from shardwright.exporters.megatron.limits import (
    GROUPED_GEMM,
    TARGET,
    least_capability,
    pools_of,
    unsupported,
)
from shardwright.exporters.megatron.model import (
    GPT,
    Arguments,
    by_pattern,
    model_arguments,
    moe_arguments,
    pattern_arguments,
    program,
    scaling_arguments,
)
from shardwright.exporters.support.matrix import trainers
from shardwright.exporters.support.traits import options_of
from shardwright.plans.check import check
from shardwright.plans.mesh import Host, hosts, one_recompute
from shardwright.plans.placement import machine_sizes
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.spec.job import HYBRID, dispatcher_of
from shardwright.spec.options import STATE, Dispatcher

MEGATRON_VERSION = trainers()[TARGET].version
FP8_RECIPE = "delayed"
LOG: Arguments = (("--log-throughput",), ("--log-interval", "1"))
FP8_FORMAT = {"delayed": "hybrid", "tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}
GRAD_REDUCE = {"fp32": "--accumulate-allreduce-grads-in-fp32", "bf16": "--grad-reduce-in-bf16"}
SHARDING_STRATEGY = {"zero2": "optim_grads", "zero3": "optim_grads_params"}


# What reading a launch takes for granted, so that writing it would change nothing.
SILENT = frozenset(("--ckpt-format", "--log-throughput", "--log-interval", "--padded-vocab-size"))


@record
class ArgumentGroup:
    """Arguments that belong together, each a flag with its values, and what a reader should know of them."""

    title: str
    arguments: Arguments
    note: str = ""


@record
class MegatronExport:
    """The launch of a plan with Megatron-LM of release `version`, on `hosts` in the order of their ranks: its script
    `program`.

    Megatron-LM numbers ranks in the plan's rank order, so with these counts each stands where `plans.placement` has it.
    `environment` holds variables to export; a value of None means that the variable must not be set.
    """

    version: str
    hosts: tuple[Host, ...]
    environment: tuple[tuple[str, str | None], ...]
    groups: tuple[ArgumentGroup, ...]
    program: str = GPT

    @property
    def nodes(self) -> int:
        return len(self.hosts)

    @property
    def machine_gpus(self) -> tuple[int, ...]:
        """The processes of each machine."""
        return tuple(host.gpus for host in self.hosts)

    @property
    def gpus_per_node(self) -> int:
        """The GPUs of a machine, of the first where the last one has fewer."""
        return max(self.machine_gpus)

    @property
    def arguments(self) -> tuple[str, ...]:
        """All arguments in order, as a process gets them."""
        return tuple(word for group in self.groups for argument in group.arguments for word in argument)


def to_megatron(plan: Plan) -> MegatronExport:
    """Return the arguments that make Megatron-LM run `plan`.

    Data, tokenizer, learning rate and checkpoints are the user's and not among them; the launch script names them.
    Raises SpecError with every reason where the plan is illegal, or Megatron-LM cannot express it.
    """
    reject(check(plan) or unsupported(plan))
    experts = moe_arguments(
        plan.model,
        grouped_gemm=least_capability(plan) >= GROUPED_GEMM,
        dispatcher=dispatcher_arguments(plan),
    )
    moe_note = "The balancing of the router is a choice of training, not of the plan."
    # Naming FlashAttention would switch cuDNN's off, which alone takes heads of unequal widths (latent attention).
    kernels = "Transformer Engine chooses the kernel of attention." if plan.flash_attention else ""
    model = model_arguments(plan.model, plan.job.seq_len, plan.stages[0].tensor_parallel)
    groups = (
        ArgumentGroup(title="Model", arguments=model, note=_model_note(plan)),
        ArgumentGroup(title="Experts", arguments=experts, note=moe_note),
        ArgumentGroup(title="Parallelism", arguments=_parallel_arguments(plan), note=_parallel_note(plan)),
        ArgumentGroup(title="Activation recomputation", arguments=_recompute_arguments(plan)),
        ArgumentGroup(title="Optimizer and data parallelism", arguments=_optimizer_arguments(plan)),
        ArgumentGroup(title="Overlap of communication", arguments=_overlap_arguments(plan)),
        ArgumentGroup(title="CUDA graphs", arguments=_graph_arguments(plan)),
        ArgumentGroup(title="Batch and length", arguments=_batch_arguments(plan), note=_batch_note(plan)),
        ArgumentGroup(title="Precision and kernels", arguments=_precision_arguments(plan), note=kernels),
        ArgumentGroup(title="Log", arguments=LOG, note="Each step's time and FLOPs, to hold against the plan's."),
    )
    return MegatronExport(
        version=MEGATRON_VERSION,
        hosts=_hosts(plan),
        environment=environment(plan),
        groups=tuple(group for group in groups if group.arguments),
        program=program(plan.model),
    )


def _hosts(plan: Plan) -> tuple[Host, ...]:
    if plan.uniform:
        return tuple(Host(gpu=plan.stages[0].gpu, gpus=size) for size in machine_sizes(plan))
    found = hosts(plan)
    assert found is not None, "it fits a mesh"
    return found


def _parallel_arguments(plan: Plan) -> Arguments:
    stages, stage = plan.replicas[0].stages, plan.stages[0]
    arguments: list[tuple[str, ...]] = [
        ("--tensor-model-parallel-size", str(stage.tensor_parallel)),
        ("--pipeline-model-parallel-size", str(len(stages))),
        ("--context-parallel-size", str(stage.context_parallel)),
    ]
    if plan.model.has_experts:
        arguments.append(("--expert-model-parallel-size", str(stage.expert_parallel)))
        arguments.append(("--expert-tensor-parallel-size", str(stage.expert_tensor_parallel)))
    if plan.sequence_parallel:
        arguments.append(("--sequence-parallel",))
    counts = layer_counts_of_ranges([stage.layers for stage in stages])
    if by_pattern(plan.model):
        arguments += pattern_arguments(plan.model, counts)
    elif len(stages) > 1:
        arguments.append(("--pipeline-model-parallel-layout", layout_text(counts, plan.model.mtp_layers)))
    if stage.context_parallel > 1 and any(kind.window for kind in plan.model.kinds):
        arguments.append(("--cp-comm-type", _windowed_exchange(plan)))
    if plan.rank_order == "tp-cp-ep-pp-dp":
        arguments.append(("--use-tp-pp-dp-mapping",))
    return tuple(arguments)


def _windowed_exchange(plan: Plan) -> str:
    """Return how context-parallel ranks exchange keys and values under a window: the ring (p2p) takes none. The
    exchange of heads needs as many on every rank (TransformerEngine@v2.8:
    transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py)."""
    stage = plan.stages[0]
    groups = [attention.kv_heads // stage.tensor_parallel for attention in plan.model.attentions]
    return "a2a" if all(count % stage.context_parallel == 0 and count for count in groups) else "all_gather"


def _recompute_arguments(plan: Plan) -> Arguments:
    recompute = one_recompute(plan)
    if recompute is None or recompute.granularity == "none":
        return ()
    if recompute.granularity == "selective":
        modules = plan.job.options.recompute_modules or ("core_attn",)
        return (("--recompute-granularity", "selective"), ("--recompute-modules", *modules))
    return (
        ("--recompute-granularity", "full"),
        ("--recompute-method", str(recompute.method)),
        ("--recompute-num-layers", str(recompute.layers)),
    )


def _optimizer_arguments(plan: Plan) -> Arguments:
    optimizer = plan.optimizer
    arguments: list[tuple[str, ...]] = [("--optimizer", plan.job.optimizer)]
    if optimizer.distributed:
        arguments.append(("--use-distributed-optimizer",))
    if optimizer.sharding in SHARDING_STRATEGY:
        arguments.append(("--use-megatron-fsdp",))
        arguments.append(("--data-parallel-sharding-strategy", SHARDING_STRATEGY[optimizer.sharding]))
        arguments += [("--no-gradient-accumulation-fusion",), ("--ckpt-format", "fsdp_dtensor")]
    if optimizer.offload > 0:
        arguments += [("--optimizer-cpu-offload",), ("--optimizer-offload-fraction", repr(float(optimizer.offload)))]
        arguments.append(("--use-precision-aware-optimizer",))
    return (*arguments, *_width_arguments(options_of(plan)))


def _width_arguments(options: Mapping[str, str]) -> Arguments:
    """Types of gradients and of the optimizer's state."""
    arguments: list[tuple[str, ...]] = []
    if "grad_reduce" in options:
        arguments.append((GRAD_REDUCE[options["grad_reduce"]],))
    types = [(f"--{name.replace('_', '-')}-dtype", options[name]) for name in STATE if name in options]
    return (*arguments, *([("--use-precision-aware-optimizer",)] if types else ()), *types)


def _overlap_arguments(plan: Plan) -> Arguments:
    """Pipeline transfers overlap unless told otherwise, and only when interleaved."""
    overlap = plan.overlap
    flags = {
        "--overlap-grad-reduce": overlap.grad_reduce,
        "--overlap-param-gather": overlap.param_gather,
        "--tp-comm-overlap": overlap.tensor_parallel,
        "--no-overlap-p2p-communication": plan.schedule.virtual_stages > 1 and not overlap.pipeline,
        "--overlap-moe-expert-parallel-comm": plan.job.options.exchange_overlap == "batches",
    }
    return tuple((flag,) for flag, wanted in flags.items() if wanted)


def _graph_arguments(plan: Plan) -> Arguments:
    """CUDA graphs (arguments.py 1195 and 1873-1888)."""
    scope = plan.job.options.cuda_graph
    if scope in (None, "none"):
        return ()
    if scope == "full":
        return (("--cuda-graph-impl", "full_iteration"), ("--no-check-for-nan-in-loss-and-grad",))
    modules = graph_modules(plan)
    return (("--cuda-graph-impl", "transformer_engine"), *([("--cuda-graph-modules", *modules)] if modules else ()))


def graph_modules(plan: Plan) -> tuple[str, ...]:
    """Return the modules that graphs of parts of layers hold; none for whole layers."""
    parts = {"attention": ("attn", "mamba"), "moe": ()}.get(plan.job.options.cuda_graph or "")
    if parts is None:
        return ()
    kinds = plan.model.kinds
    there = {"attn": any(kind.attention for kind in kinds), "mamba": any(kind.mixer for kind in kinds)}
    experts = ("moe_router", "moe_preprocess") if any(kind.moe for kind in kinds) else ()
    return (*(part for part in parts if there[part]), *experts)


def _batch_arguments(plan: Plan) -> Arguments:
    job = plan.job
    arguments: list[tuple[str, ...]] = [
        ("--micro-batch-size", str(plan.micro_batch)),
        ("--global-batch-size", str(job.global_batch)),
        ("--seq-length", str(job.seq_len)),
        ("--no-create-attention-mask-in-dataloader",),
    ]
    if job.iterations is not None:
        arguments.append(("--train-iters", str(math.ceil(job.iterations))))
    return tuple(arguments)


def _precision_arguments(plan: Plan) -> Arguments:
    job = plan.job
    arguments: list[tuple[str, ...]] = []
    if job.precision != "fp32":
        arguments.append(("--fp16",) if job.precision == "fp16" else ("--bf16",))
    if job.precision == "fp8":
        recipe = job.fp8_recipe or FP8_RECIPE
        arguments += [("--fp8-format", FP8_FORMAT[recipe]), ("--fp8-recipe", recipe)]
        if recipe == "delayed":  # Megatron's own history is one step
            arguments += [("--fp8-amax-history-len", "1024"), ("--fp8-amax-compute-algo", "max")]
        if options_of(plan).get("param_gather") == "fp8":
            arguments.append(("--fp8-param-gather",))
    if not plan.flash_attention:
        arguments.append(("--attention-backend", "unfused"))
    if job.options.loss != "unfused":  # as it is priced where nothing is said
        arguments.append(("--cross-entropy-loss-fusion",))
    return tuple(arguments)


def environment(plan: Plan) -> tuple[tuple[str, str | None], ...]:
    """Return variables of the environment, None where one must not be set. One hardware queue keeps tensor parallel
    kernels behind their communication, before Blackwell and on AMD; FSDP wants more, and so does an exchange beside
    other micro-batches (arguments.py 1143, 1411-1439 and 1880-1887 of core_v0.19.2)."""
    stage = plan.stages[0]
    if plan.optimizer.sharding in SHARDING_STRATEGY:
        return (("CUDA_DEVICE_MAX_CONNECTIONS", None),)
    options = plan.job.options
    # Graphs that hold collectives, beside memory that is mapped as it grows.
    graphs = () if options.cuda_graph in (None, "none") else (("NCCL_GRAPH_REGISTER", "0"),)
    if options.exchange_overlap == "batches":
        return (("CUDA_DEVICE_MAX_CONNECTIONS", "32"), *graphs)
    amd = any(pool.gpu.vendor == "amd" for pool in pools_of(plan))
    if stage.gpus > 1 and (amd or least_capability(plan) < 10):
        return (("CUDA_DEVICE_MAX_CONNECTIONS", "1"), *graphs)
    return graphs


def _model_note(plan: Plan) -> str:
    attention, scaling = plan.model.self_attention, plan.model.rotary_scaling
    if attention.latent is not None and attention.latent.query_rank is None:
        return (  # core_v0.19.2, transformer/mla_qk_norm_config.py: _resolve_mla_qk_layernorm
            f"Megatron-Core 0.19 norms what queries are projected from once more: {plan.model.hidden} weights a layer "
            f"that {plan.model.name} does not have."
        )
    if scaling is not None and not scaling_arguments(plan.model):
        words = f"The config scales rotary positions ({scaling.kind}, factor {scaling.factor:g})"
        return f"{words}, for which Megatron-LM has no arguments: these are plain."
    if plan.model.position == "rope" and scaling is None:
        return "Plain rotary positions; to go on from a checkpoint with scaled ones, add its scaling arguments."
    return ""


def _parallel_note(plan: Plan) -> str:
    rank = plan.stages[0]
    return (
        f"Data parallel degree {plan.data_parallel} = {plan.gpus} GPUs / (tensor {rank.tensor_parallel} * pipeline "
        f"{len(plan.replicas[0].stages)} * context {rank.context_parallel})."
    )


def _batch_note(plan: Plan) -> str:
    note = f"{plan.replicas[0].micro_batches} micro-batches a step."
    return note if plan.job.iterations is not None else note + " The plan sets no end: TRAIN_ITERS does."


def dispatcher_of_plan(plan: Plan) -> Dispatcher:
    """Return the dispatcher that a plan is priced with. Where experts stay inside an NVLink domain, a `flex` that the
    plan does not ask for takes as long as the all-to-all, which runs everywhere."""
    stage, pools = plan.stages[0], pools_of(plan)
    apart = stage.expert_parallel * stage.expert_tensor_parallel > min(pool.domain_gpus for pool in pools)
    if plan.job.options.dispatcher or apart:
        return dispatcher_of(plan.job, (pool.gpu for pool in pools))
    return "alltoall"


def flex_backend(plan: Plan) -> str:
    """Return what sends tokens for `flex`: DeepEP, or HybridEP, which also knows the NVL72s of Blackwell
    (Megatron-Bridge 0.6.2: training/flex_dispatcher_backend.py 102-119)."""
    return "deepep" if least_capability(plan) < HYBRID else "hybridep"


def dispatcher_arguments(plan: Plan) -> Arguments:
    """Return the dispatcher as arguments, and the capacity to which it drops or pads rows. DeepEP and HybridEP take
    probabilities in fp32 alone (token_dispatcher.py 1127 and 1303 of core_v0.19.2)."""
    dispatcher, options = dispatcher_of_plan(plan), plan.job.options
    arguments: Arguments = (("--moe-token-dispatcher-type", dispatcher),)
    if options.expert_capacity is not None:
        arguments = (*arguments, ("--moe-expert-capacity-factor", repr(options.expert_capacity)))
    if options.padded:
        arguments = (*arguments, ("--moe-pad-expert-input-to-capacity",))
    if dispatcher != "flex":
        return arguments
    biased = any(kind.moe and kind.moe.router_bias for kind in plan.model.kinds)  # whose arguments say so already
    exact: Arguments = () if biased else (("--moe-router-dtype", "fp32"),)
    return (*arguments, ("--moe-flex-dispatcher-backend", flex_backend(plan)), *exact)


@record(kw_only=False)
class ArgumentDifference:
    """Arguments to write, which replace those of the same name, and arguments to leave out."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


def difference(before: Plan, after: Plan) -> ArgumentDifference | None:
    """Return what makes a command line for `before` one for `after`; None where Megatron-LM cannot run one of them."""
    try:
        old, new = (_arguments(plan) for plan in (before, after))
    except SpecError:
        return None
    added = tuple(shlex.join((flag, *values)) for flag, values in new.items() if old.get(flag) != values)
    return ArgumentDifference(added, tuple(flag for flag in old if flag not in new))


def _arguments(plan: Plan) -> dict[str, tuple[str, ...]]:
    groups = to_megatron(plan).groups
    return {argument[0]: argument[1:] for group in groups for argument in group.arguments if argument[0] not in SILENT}
