"""A plan as the arguments of Megatron-LM's `pretrain_gpt.py`, or `pretrain_hybrid.py`, and what to change among them to
run another plan.

Written for core_v0.19.x, whose names and defaults these are. The pipeline is always given as a layout string: it alone
can say any split, and excludes the other ways to say one.
"""

from __future__ import annotations

import math
import shlex

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
    Values,
    arguments_of,
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
LOG = {"--log-throughput": True, "--log-interval": 1}
FP8_FORMAT = {"delayed": "hybrid", "tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}
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
    groups: tuple[tuple[str, Values, str], ...] = (
        ("Model", model, _model_note(plan)),
        ("Experts", experts, moe_note),
        ("Parallelism", _parallel_arguments(plan), _parallel_note(plan)),
        ("Activation recomputation", _recompute_arguments(plan), ""),
        ("Optimizer and data parallelism", _optimizer_arguments(plan), ""),
        ("Overlap of communication", _overlap_arguments(plan), ""),
        ("CUDA graphs", _graph_arguments(plan), ""),
        ("Batch and length", _batch_arguments(plan), _batch_note(plan)),
        ("Precision and kernels", _precision_arguments(plan), kernels),
        ("Log", LOG, "Each step's time and FLOPs, to hold against the plan's."),
    )
    return MegatronExport(
        version=MEGATRON_VERSION,
        hosts=_hosts(plan),
        environment=environment(plan),
        groups=tuple(
            ArgumentGroup(title=title, arguments=arguments, note=note)
            for title, values, note in groups
            if (arguments := arguments_of(values))
        ),
        program=program(plan.model),
    )


def _hosts(plan: Plan) -> tuple[Host, ...]:
    if plan.uniform:
        return tuple(Host(gpu=plan.stages[0].gpu, gpus=size) for size in machine_sizes(plan))
    found = hosts(plan)
    assert found is not None, "it fits a mesh"
    return found


def _parallel_arguments(plan: Plan) -> Values:
    stages, stage, experts = plan.replicas[0].stages, plan.stages[0], plan.model.has_experts
    windowed = stage.context_parallel > 1 and any(kind.window for kind in plan.model.kinds)
    return {
        "--tensor-model-parallel-size": stage.tensor_parallel,
        "--pipeline-model-parallel-size": len(stages),
        "--context-parallel-size": stage.context_parallel,
        "--expert-model-parallel-size": stage.expert_parallel if experts else None,
        "--expert-tensor-parallel-size": stage.expert_tensor_parallel if experts else None,
        "--sequence-parallel": plan.sequence_parallel,
        **_layout_arguments(plan),
        "--cp-comm-type": _windowed_exchange(plan) if windowed else None,
        "--use-tp-pp-dp-mapping": plan.rank_order == "tp-cp-ep-pp-dp",
    }


def _layout_arguments(plan: Plan) -> Values:
    stages = plan.replicas[0].stages
    counts = layer_counts_of_ranges([stage.layers for stage in stages])
    if by_pattern(plan.model):
        return pattern_arguments(plan.model, counts)
    text = layout_text(counts, plan.model.mtp_layers) if len(stages) > 1 else None
    return {"--pipeline-model-parallel-layout": text}


def _windowed_exchange(plan: Plan) -> str:
    """Return how context-parallel ranks exchange keys and values under a window: the ring (p2p) takes none. The
    exchange of heads needs as many on every rank (TransformerEngine@v2.8:
    transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py)."""
    stage = plan.stages[0]
    groups = [attention.kv_heads // stage.tensor_parallel for attention in plan.model.attentions]
    return "a2a" if all(count % stage.context_parallel == 0 and count for count in groups) else "all_gather"


def _recompute_arguments(plan: Plan) -> Values:
    recompute = one_recompute(plan)
    if recompute is None or recompute.granularity == "none":
        return {}
    if recompute.granularity == "selective":
        modules = plan.job.options.recompute_modules or ("core_attn",)
        return {"--recompute-granularity": "selective", "--recompute-modules": tuple(modules)}
    return {
        "--recompute-granularity": "full",
        "--recompute-method": recompute.method,
        "--recompute-num-layers": recompute.layers,
    }


def _optimizer_arguments(plan: Plan) -> Values:
    """Return how state is shared and kept in host memory, and the types of gradients and of the optimizer's state."""
    optimizer, options = plan.optimizer, options_of(plan)
    fsdp, offloads = optimizer.sharding in SHARDING_STRATEGY, optimizer.offload > 0
    types = {f"--{name.replace('_', '-')}-dtype": options[name] for name in STATE if name in options}
    return {
        "--optimizer": plan.job.optimizer,
        "--use-distributed-optimizer": optimizer.distributed,
        "--use-megatron-fsdp": fsdp,
        "--data-parallel-sharding-strategy": SHARDING_STRATEGY.get(optimizer.sharding),
        "--no-gradient-accumulation-fusion": fsdp,
        "--ckpt-format": "fsdp_dtensor" if fsdp else None,
        "--optimizer-cpu-offload": offloads,
        "--optimizer-offload-fraction": float(optimizer.offload) if offloads else None,
        "--accumulate-allreduce-grads-in-fp32": options.get("grad_reduce") == "fp32",
        "--grad-reduce-in-bf16": options.get("grad_reduce") == "bf16",
        "--use-precision-aware-optimizer": offloads or bool(types),
        **types,
    }


def _overlap_arguments(plan: Plan) -> Values:
    """Pipeline transfers overlap unless told otherwise, and only when interleaved."""
    overlap = plan.overlap
    return {
        "--overlap-grad-reduce": overlap.grad_reduce,
        "--overlap-param-gather": overlap.param_gather,
        "--tp-comm-overlap": overlap.tensor_parallel,
        "--no-overlap-p2p-communication": plan.schedule.virtual_stages > 1 and not overlap.pipeline,
        "--overlap-moe-expert-parallel-comm": plan.job.options.exchange_overlap == "batches",
    }


def _graph_arguments(plan: Plan) -> Values:
    """CUDA graphs (arguments.py 1195 and 1873-1888)."""
    scope = plan.job.options.cuda_graph
    if scope in (None, "none"):
        return {}
    if scope == "full":
        return {"--cuda-graph-impl": "full_iteration", "--no-check-for-nan-in-loss-and-grad": True}
    return {"--cuda-graph-impl": "transformer_engine", "--cuda-graph-modules": graph_modules(plan) or None}


def graph_modules(plan: Plan) -> tuple[str, ...]:
    """Return the modules that graphs of parts of layers hold; none for whole layers."""
    parts = {"attention": ("attn", "mamba"), "moe": ()}.get(plan.job.options.cuda_graph or "")
    if parts is None:
        return ()
    kinds = plan.model.kinds
    there = {"attn": any(kind.attention for kind in kinds), "mamba": any(kind.mixer for kind in kinds)}
    experts = ("moe_router", "moe_preprocess") if any(kind.moe for kind in kinds) else ()
    return (*(part for part in parts if there[part]), *experts)


def _batch_arguments(plan: Plan) -> Values:
    return {
        "--micro-batch-size": plan.micro_batch,
        "--global-batch-size": plan.job.global_batch,
        "--seq-length": plan.job.seq_len,
        "--no-create-attention-mask-in-dataloader": True,
        "--train-iters": None if plan.job.iterations is None else math.ceil(plan.job.iterations),
    }


def _precision_arguments(plan: Plan) -> Values:
    job, options = plan.job, options_of(plan)
    recipe = (job.fp8_recipe or FP8_RECIPE) if job.precision == "fp8" else None
    delayed = recipe == "delayed"  # Megatron's own history is one step
    return {
        "--fp16": job.precision == "fp16",
        "--bf16": job.precision not in ("fp16", "fp32"),
        "--fp8-format": FP8_FORMAT[recipe] if recipe else None,
        "--fp8-recipe": recipe,
        "--fp8-amax-history-len": 1024 if delayed else None,
        "--fp8-amax-compute-algo": "max" if delayed else None,
        "--fp8-param-gather": recipe is not None and options.get("param_gather") == "fp8",
        "--attention-backend": None if plan.flash_attention else "unfused",
        "--cross-entropy-loss-fusion": job.options.loss != "unfused",  # as it is priced where nothing is said
    }


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


def dispatcher_arguments(plan: Plan) -> Values:
    """Return the dispatcher as arguments, and the capacity to which it drops or pads rows. DeepEP and HybridEP take
    probabilities in fp32 alone (token_dispatcher.py 1127 and 1303 of core_v0.19.2)."""
    dispatcher, options = dispatcher_of_plan(plan), plan.job.options
    flex = dispatcher == "flex"
    return {
        "--moe-token-dispatcher-type": dispatcher,
        "--moe-expert-capacity-factor": options.expert_capacity,
        "--moe-pad-expert-input-to-capacity": options.padded,
        **({"--moe-flex-dispatcher-backend": flex_backend(plan), "--moe-router-dtype": "fp32"} if flex else {}),
    }


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
