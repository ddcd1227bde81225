"""A plan from Megatron-LM's arguments, options of the trainer among it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from shardwright.errors import bad
from shardwright.exporters.megatron.layout import EvenSplit, layer_counts_of_layout, layer_counts_of_split, stage_ranges
from shardwright.importers.megatron.flags import Flags
from shardwright.plans.plan import (
    Granularity,
    OptimizerPlan,
    Overlap,
    Plan,
    Recompute,
    Replica,
    Schedule,
    Sharding,
    Stage,
)
from shardwright.rows import stated
from shardwright.spec.catalog.frameworks import MEGATRON, framework_options
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Fp8Recipe, Job, Precision
from shardwright.spec.model import Model
from shardwright.spec.options import MODULES, STATE, CudaGraph, Module, Options, ordered

STRATEGIES: dict[str, Sharding] = {
    "no_shard": "none",
    "optim": "zero1",
    "optim_grads": "zero2",
    "optim_grads_params": "zero3",
}
STAGES: tuple[Sharding, ...] = ("none", "zero1", "zero2", "zero3")
BALANCED = {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}  # with a capacity (transformer_config.py 1661)
DISPATCHERS = {"alltoall_seq": "alltoall"}
PLAIN = "with FSDP or an offloaded optimizer its types are priced as fp32"


def plan_of_flags(
    flags: Flags, model: Model, cluster: Cluster, gpu: str, world: int, job: Job | None, name: str
) -> Plan:
    """Return the plan of arguments on `world` GPUs of type `gpu`. Flags that are missing have Megatron-LM's defaults.
    Raises SpecError for degrees and batches that do not divide; the plan may still be illegal (`plans.check`)."""
    data_parallel = _data_parallel(flags, world, name)
    micro_batch, global_batch, seq_len = _batch(flags, data_parallel, job, name)
    stages = _stages(flags, model, gpu, name)
    sequence_parallel = flags["--sequence-parallel"] and flags["--tensor-model-parallel-size"] > 1
    chunks = len(stages[0].layers)
    optimizer, job = _optimizer(flags, name), _job(flags, job, global_batch, seq_len, name)
    overlap = Overlap(
        grad_reduce=flags["--overlap-grad-reduce"],
        param_gather=flags["--overlap-param-gather"],
        tensor_parallel=flags["--tp-comm-overlap"],
        pipeline=chunks > 1 and not flags["--no-overlap-p2p-communication"],
    )
    return Plan(
        model=model,
        job=replace(job, options=options_of(flags, model, job, optimizer)),
        cluster=cluster,
        micro_batch=micro_batch,
        schedule=Schedule(kind="interleaved" if chunks > 1 else "1f1b", virtual_stages=chunks),
        replicas=(
            Replica(
                count=data_parallel,
                micro_batches=global_batch // (micro_batch * data_parallel),
                stages=stages,
            ),
        ),
        optimizer=optimizer,
        overlap=overlap,
        sequence_parallel=sequence_parallel,
        flash_attention=_flash(flags),
        rank_order="tp-cp-ep-pp-dp" if flags["--use-tp-pp-dp-mapping"] else "tp-cp-ep-dp-pp",
    )


def _flash(flags: Flags) -> bool:
    """Whether attention is fused: without Transformer Engine it is where that is said alone."""
    able = flags["--transformer-impl"] != "local" and flags["--attention-backend"] in ("flash", "fused", "auto")
    return bool(flags["--use-flash-attn"]) or able


def _data_parallel(flags: Flags, world: int, name: str) -> int:
    names = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size")
    if flags["--ds-sequence-parallel-size"] > 1:
        message = "sequences split by heads from end to end (Ulysses) are not described"
        raise bad(f"{name}: --ds-sequence-parallel-size", message, "leave the flag out, or describe a plan")
    size = 1
    for flag in names:
        if flags[flag] < 1:
            raise bad(f"{name}: {flag}", "is 0", "write at least 1")
        size *= _depth(flags) if flag == "--pipeline-model-parallel-size" else flags[flag]
    if world % size:
        message = f"tensor * pipeline * context parallel = {size} does not divide the {world} GPUs"
        raise bad(name, message, "change a degree, or give the cluster that the arguments are for")
    return world // size


def _batch(flags: Flags, data_parallel: int, job: Job | None, name: str) -> tuple[int, int, int]:
    """Micro-batch, global batch and sequence length. Without a global batch it is one micro-batch a replica."""
    micro_batch = flags["--micro-batch-size"]
    if not micro_batch:
        raise bad(f"{name}: --micro-batch-size", "is missing", "add it: Megatron-LM has no default")
    global_batch = flags["--global-batch-size"] or micro_batch * data_parallel
    if global_batch % (micro_batch * data_parallel):
        message = f"{global_batch} is no multiple of micro-batch {micro_batch} * data parallel degree {data_parallel}"
        raise bad(f"{name}: --global-batch-size", message, "change the batch or the degrees")
    seq_len = flags["--seq-length"] or (job.seq_len if job else 0)
    if not seq_len and job is not None and job.framework != "megatron":
        raise bad(name, "does not say how many tokens a sample has", "give them: --seq-len 4096")
    if not seq_len:
        raise bad(f"{name}: --seq-length", "is missing", "add it, or give --seq-len 4096")
    return micro_batch, global_batch, seq_len


def _job(flags: Flags, job: Job | None, global_batch: int, seq_len: int, name: str) -> Job:
    if flags["--bf16"] and flags["--fp16"]:
        raise bad(f"{name}: --fp16", "stands beside --bf16", "keep one of them")
    balancing = flags["--moe-router-load-balancing-type"]
    if flags["--moe-expert-capacity-factor"] is not None and not set(balancing.split()) <= BALANCED:
        message = f"stands beside --moe-router-load-balancing-type {balancing}, with which Megatron-LM refuses it"
        raise bad(f"{name}: --moe-expert-capacity-factor", message, f"balance by {', '.join(sorted(BALANCED))}")
    precision: Precision = "fp16" if flags["--fp16"] else "bf16" if flags["--bf16"] else "fp32"
    fp8 = flags["--fp8-format"] is not None
    tokens = job.tokens if job else None
    if flags["--train-iters"]:
        tokens = float(flags["--train-iters"]) * global_batch * seq_len
    elif flags["--train-samples"]:
        tokens = float(flags["--train-samples"]) * seq_len
    elif flags["--train-tokens"]:
        tokens = float(flags["--train-tokens"])
    base = job or Job(global_batch=global_batch, seq_len=seq_len)
    return replace(
        base,
        global_batch=global_batch,
        seq_len=seq_len,
        tokens=tokens,
        precision="fp8" if fp8 else precision,
        fp8_recipe=cast("Fp8Recipe", flags["--fp8-recipe"]) if fp8 else None,
        optimizer="sgd" if flags["--optimizer"] == "sgd" else base.optimizer,
        fused_loss=flags["--cross-entropy-loss-fusion"] and flags["--cross-entropy-fusion-impl"] == "linear",
    )


def _depth(flags: Flags) -> int:
    return 1 if flags["--no-pipeline-parallel"] else int(flags["--pipeline-model-parallel-size"])


def _stages(flags: Flags, model: Model, gpu: str, name: str) -> tuple[Stage, ...]:
    pipeline = _depth(flags)
    tensor_parallel = flags["--tensor-model-parallel-size"]
    experts = model.has_experts
    expert_tensor = flags["--expert-tensor-parallel-size"] or tensor_parallel
    recompute = _recompute(flags, name)
    if recompute.granularity == "selective" and not recomputes(flags, model):
        recompute = Recompute()
    return tuple(
        Stage(
            gpu=gpu,
            tensor_parallel=tensor_parallel,
            context_parallel=flags["--context-parallel-size"],
            expert_parallel=flags["--expert-model-parallel-size"],
            expert_tensor_parallel=expert_tensor if experts else 1,
            layers=ranges,
            recompute=recompute,
        )
        for ranges in stage_ranges(_layer_counts(flags, len(model.layers), name), pipeline)
    )


def _layer_counts(flags: Flags, layers: int, name: str) -> tuple[int, ...]:
    """Layers of each virtual stage in order of execution."""
    pipeline, layout = _depth(flags), flags["--pipeline-model-parallel-layout"]
    place = f"{name}: --pipeline-model-parallel-" + ("size" if layout is None else "layout")
    pattern = flags["--hybrid-layer-pattern"]
    try:
        if pattern is not None and "|" in pattern:
            place, counts = f"{name}: --hybrid-layer-pattern", tuple(map(len, pattern.split("|")))
        elif layout is None:
            return layer_counts_of_split(layers, _split(flags, layers, pipeline))
        else:
            counts = layer_counts_of_layout(layout)
    except ValueError as error:
        raise bad(place, str(error), "Megatron-LM refuses it too") from None
    if len(counts) % pipeline:
        raise bad(place, f"has {len(counts)} stages for {pipeline} pipeline ranks", "make it a multiple")
    if sum(counts) != layers:
        raise bad(place, f"places {sum(counts)} layers, the model has {layers}", "correct the counts of t")
    return counts


def _split(flags: Flags, layers: int, pipeline: int) -> EvenSplit:
    """How Megatron splits without a layout string. Raises ValueError where virtual stages do not divide."""
    both = flags["--pp-partition-method"] == "type:transformer|embedding"  # Megatron-DeepSpeed
    embedding = both or flags["--account-for-embedding-in-pipeline-split"]
    loss = both or flags["--account-for-loss-in-pipeline-split"]
    per_chunk, chunks = (
        flags["--num-layers-per-virtual-pipeline-stage"],
        flags["--num-virtual-stages-per-pipeline-rank"],
    )
    if per_chunk and chunks:
        raise ValueError("--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-… exclude each other")
    if per_chunk:
        total = layers + int(embedding) + int(loss)
        if total % (pipeline * per_chunk):
            raise ValueError(f"{total} layers do not divide by {pipeline} ranks times {per_chunk} layers")
        chunks = total // pipeline // per_chunk
    return EvenSplit(
        pipeline=pipeline,
        chunks=chunks or 1,
        first=flags["--decoder-first-pipeline-num-layers"],
        last=flags["--decoder-last-pipeline-num-layers"],
        embedding=embedding,
        loss=loss,
    )


def _recompute(flags: Flags, name: str) -> Recompute:
    selective = flags["--recompute-activations"] or flags["--moe-layer-recompute"]
    granularity = "selective" if selective else flags["--recompute-granularity"]
    method, layers = flags["--recompute-method"], flags["--recompute-num-layers"]
    if flags["--checkpoint-activations"] or (granularity is None and method is not None and layers):
        return Recompute(granularity="full", method=method or "uniform", layers=layers or 1)  # Megatron-LM before 3.0
    if granularity is None:
        return Recompute()
    if method == "uniform" and layers is None:
        layers = 1  # the default up to core_v0.4
    if granularity == "full" and (method is None or not layers):
        flag = "--recompute-method" if method is None else "--recompute-num-layers"
        raise bad(f"{name}: {flag}", "is missing beside --recompute-granularity full", "Megatron-LM demands it")
    return Recompute(granularity=cast("Granularity", granularity), method=method, layers=layers)


def _optimizer(flags: Flags, name: str) -> OptimizerPlan:
    if flags["--use-torch-fsdp2"]:
        sharding: Sharding = "zero3"
    elif flags["--use-megatron-fsdp"]:
        sharding = STRATEGIES[flags["--data-parallel-sharding-strategy"]]
    elif flags["--zero-stage"]:
        sharding = STAGES[min(flags["--zero-stage"], 3)]
    else:
        sharding = "zero1" if flags["--use-distributed-optimizer"] else "none"
    offloads = flags["--optimizer-cpu-offload"] or flags["--optimizer-offload-policy"] == "static"
    if flags["--optimizer-offload-policy"] not in (None, "static"):
        message = "how much is offloaded is decided while it runs"
        raise bad(f"{name}: --optimizer-offload-policy", message, "write static, with a fraction")
    offload = flags["--optimizer-offload-fraction"] if offloads else 0.0
    if offload > 1:
        raise bad(f"{name}: --optimizer-offload-fraction", f"is {offload:g}", "write a fraction from 0 to 1")
    return OptimizerPlan(sharding=sharding, offload=offload)


def options_of(flags: Flags, model: Model, job: Job, optimizer: OptimizerPlan) -> Options:
    """Return the job's options with those that arguments say and that their framework is priced by. Modules that the
    model has not are left out: they recompute nothing."""
    able, said = framework_options(job.framework), _said(flags, model, job, optimizer)
    return replace(job.options, **{name: value for name, value in said.items() if name in able})


def recomputes(flags: Flags, model: Model) -> bool:
    """Return whether selective recomputation repeats anything of the model."""
    return bool(set(_modules(flags)) & set(_present(model)))


def unpriced(flags: Flags, job: Job, optimizer: OptimizerPlan) -> Iterator[str]:
    """Yield what the arguments say of types that the plan does not."""
    if flags["--use-precision-aware-optimizer"] and job.precision in ("bf16", "fp8") and not _aware(optimizer):
        yield from (f"{_flag(name)} ({PLAIN})" for name in STATE if flags[_flag(name)] != "fp32")
    if flags["--fp8-param-gather"] and not _keeps_fp8(flags, job, optimizer):
        yield "--fp8-param-gather (weights are priced in 16 bits and in fp8)"


def _said(flags: Flags, model: Model, job: Job, optimizer: OptimizerPlan) -> dict[str, Any]:
    narrow = job.precision in ("bf16", "fp8")
    # A fused loss is what plans that say none are priced and exported with.
    unfused = job.framework == MEGATRON and not flags["--cross-entropy-loss-fusion"]
    said = {
        "recompute_modules": ordered(set(_modules(flags)) & set(_present(model))) or None,
        "grad_reduce": "bf16"
        if narrow and flags["--grad-reduce-in-bf16"] and optimizer.sharding in ("none", "zero1")
        else None,
        "param_gather": "fp8" if _keeps_fp8(flags, job, optimizer) else None,
        "loss": "unfused" if unfused else None,
        "cuda_graph": _graphs(flags),
        **(_of_experts(flags) if model.has_experts else {}),
    }
    if narrow and flags["--use-precision-aware-optimizer"] and _aware(optimizer):
        said |= {name: flags[_flag(name)] for name in STATE}
    return stated(said)


def _of_experts(flags: Flags) -> dict[str, Any]:
    """Return how tokens are sent to experts, and how many these take."""
    name = flags["--moe-token-dispatcher-type"]
    return {
        "dispatcher": "flex" if flags["--moe-enable-deepep"] else DISPATCHERS.get(name, name),
        "expert_capacity": flags["--moe-expert-capacity-factor"],
        "expert_padding": "capacity" if flags["--moe-pad-expert-input-to-capacity"] else None,
        "exchange_overlap": "batches" if flags["--overlap-moe-expert-parallel-comm"] else None,
    }


def _graphs(flags: Flags) -> CudaGraph | None:
    """Return what CUDA graphs hold (transformer_config.py 1032-1063), also by an older argument's name."""
    modules = f"{flags['--cuda-graph-modules'] or ''} {flags['--cuda-graph-scope'] or ''}".replace(",", " ").split()
    if flags["--cuda-graph-impl"] == "none":
        return None
    if flags["--cuda-graph-impl"] == "full_iteration" or "full_iteration" in modules:
        return "full"
    if not modules or "full" in modules:
        return "layers"
    return "attention" if {"attn", "mlp", "moe", "mamba"} & set(modules) else "moe"


def _keeps_fp8(flags: Flags, job: Job, optimizer: OptimizerPlan) -> bool:
    """Return whether weights are kept in fp8 alone; those of mxfp8 are gathered in 16 bits."""
    return (
        flags["--fp8-param-gather"]
        and job.precision == "fp8"
        and job.fp8_recipe != "mxfp8"
        and optimizer.sharding == "zero1"
    )


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
