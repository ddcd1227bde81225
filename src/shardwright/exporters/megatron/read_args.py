"""A plan from a Megatron-LM launch line or script, so that it can be judged beside others."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import cast

from shardwright.errors import Problem, SpecError, bad
from shardwright.exporters.megatron.flags import LENGTHS, Flags, scan
from shardwright.exporters.megatron.layout import (
    EvenSplit,
    layer_counts_of_layout,
    layer_counts_of_split,
    stage_ranges,
)
from shardwright.exporters.megatron.read_model import read_model
from shardwright.exporters.megatron.shell import Script, read_script
from shardwright.plans.check import check
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
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Fp8Recipe, Job, Optimizer, Precision
from shardwright.spec.model import Model

PROGRAM = re.compile(r"(.*/)?[\w.-]+\.py", re.S)
COMMAND_ENDS = re.compile(r"[;&|]+|[0-9]?>.*")
STRATEGIES: dict[str, Sharding] = {
    "no_shard": "none",
    "optim": "zero1",
    "optim_grads": "zero2",
    "optim_grads_params": "zero3",
}


@dataclass(frozen=True, slots=True)
class MegatronReading:
    """A plan read from arguments, and what was passed over: notes for the user, and flags that decide nothing."""

    plan: Plan
    notes: tuple[str, ...]
    ignored: tuple[str, ...]


def plan_from_megatron(
    text: str,
    *,
    cluster: Cluster,
    model: Model | None = None,
    job: Job | None = None,
    name: str = "megatron arguments",
) -> MegatronReading:
    """Return the plan that the launch line or script `text` runs on `cluster`, which has one GPU type.

    `model` replaces the one that the arguments describe. `job` supplies what the arguments leave open: tokens,
    objective, budget and deadline. The world is what the launcher is told, else the whole cluster. Flags that are
    missing have Megatron-LM's defaults (core_v0.19). Raises SpecError with every reason why no plan can be read: a
    value that cannot be read, a variable that the text does not assign, degrees that do not divide.
    """
    problems: list[Problem] = []
    flags = _flags(read_script(text, name), name, problems)
    gpu = _one_gpu(cluster, name, problems)
    model = _model(flags, model, name, problems)
    if problems or model is None:
        raise SpecError(*problems)
    world = _world(flags, cluster, name)
    plan = _plan(flags, model, cluster, gpu, world, job, name)
    problems += [Problem(f"{name}: {fault.path}", fault.message, fault.hint) for fault in check(plan)]
    if problems:
        raise SpecError(*problems)
    return MegatronReading(plan, _notes(flags, cluster, world), flags.ignored)


def _flags(script: Script, name: str, problems: list[Problem]) -> Flags:
    """The flags of the command that runs a Python program; of all words where there is none."""
    words = script.words
    if not any(word.startswith("--") for word in words):
        words = tuple(word for _, value in script.variables for word in value)
    programs = [index for index, word in enumerate(words) if PROGRAM.fullmatch(word)]
    start = 1 + next((i for i in reversed(programs) if "pretrain" in words[i]), programs[0] if programs else -1)
    end = next((i for i in range(start, len(words)) if COMMAND_ENDS.fullmatch(words[i])), len(words))
    launcher = scan(words[:start], name, []).launcher
    flags = scan(words[start:end], name, problems)
    if not flags.given and not problems:
        problems.append(Problem(name, "contains no Megatron-LM argument", "give the launch command or its arguments"))
    return Flags(flags.given, launcher | flags.launcher, flags.ignored)


def _one_gpu(cluster: Cluster, name: str, problems: list[Problem]) -> str:
    types = sorted({pool.gpu.name for pool in cluster.pools})
    if len(types) == 1:
        return types[0]
    message = f"Megatron-LM runs on one GPU type, the cluster has {', '.join(types) or 'none'}"
    problems.append(Problem(name, message, "give a cluster of the type that the arguments are for"))
    return ""


def _model(flags: Flags, model: Model | None, name: str, problems: list[Problem]) -> Model | None:
    """The model of the arguments, or the given one, where they do not contradict it."""
    if model is None:
        return read_model(flags, name, problems)
    stated = {
        "--num-layers": len(model.layers),
        "--hidden-size": model.hidden,
        "--num-attention-heads": model.max_heads,
    }
    for flag, own in stated.items():
        if flag in flags.given and flags[flag] != own:
            message = f"is {flags[flag]}, but the model {model.name} has {own}"
            problems.append(Problem(f"{name}: {flag}", message, "name the model that the arguments are for"))
    return model


def _world(flags: Flags, cluster: Cluster, name: str) -> int:
    """GPUs of the run: what the launcher is told, else all of the cluster."""
    told = flags.launcher
    world = told.get("gpus") or told.get("nodes", 1) * told.get("gpus_per_node", 0) or cluster.gpus
    if world > cluster.gpus:
        hint = "give a larger cluster, or the launch of a smaller run"
        raise bad(name, f"the launcher starts {world} processes, the cluster has {cluster.gpus} GPUs", hint)
    return world


def _plan(flags: Flags, model: Model, cluster: Cluster, gpu: str, world: int, job: Job | None, name: str) -> Plan:
    data_parallel = _data_parallel(flags, world, name)
    micro_batch, global_batch, seq_len = _batch(flags, data_parallel, job, name)
    stages = _stages(flags, model, gpu, name)
    sequence_parallel = flags["--sequence-parallel"] and flags["--tensor-model-parallel-size"] > 1
    chunks = len(stages[0].layers)
    overlap = Overlap(
        grad_reduce=flags["--overlap-grad-reduce"],
        param_gather=flags["--overlap-param-gather"],
        tensor_parallel=flags["--tp-comm-overlap"],
        pipeline=chunks > 1 and not flags["--no-overlap-p2p-communication"],
    )
    return Plan(
        model=model,
        job=_job(flags, job, global_batch, seq_len, name),
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
        optimizer=_optimizer(flags, name),
        overlap=overlap,
        sequence_parallel=sequence_parallel,
        flash_attention=flags["--use-flash-attn"] or flags["--attention-backend"] in ("flash", "fused", "auto"),
        rank_order="tp-cp-ep-pp-dp" if flags["--use-tp-pp-dp-mapping"] else "tp-cp-ep-dp-pp",
    )


def _data_parallel(flags: Flags, world: int, name: str) -> int:
    names = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size")
    size = 1
    for flag in names:
        if flags[flag] < 1:
            raise bad(f"{name}: {flag}", "is 0", "write at least 1")
        size *= flags[flag]
    if world % size:
        message = f"tensor * pipeline * context parallel = {size} does not divide the {world} GPUs"
        raise bad(name, message, "change a degree, or give the cluster that the arguments are for")
    return world // size


def _batch(flags: Flags, data_parallel: int, job: Job | None, name: str) -> tuple[int, int, int]:
    """Micro-batch, global batch and sequence length. Without a global batch it is one micro-batch a replica."""
    micro_batch = flags["--micro-batch-size"]
    if not micro_batch:
        raise bad(f"{name}: --micro-batch-size", "is missing", "add it: Megatron-LM has no default")
    global_batch = flags["--global-batch-size"] or (job.global_batch if job else micro_batch * data_parallel)
    if global_batch % (micro_batch * data_parallel):
        message = f"{global_batch} is no multiple of micro-batch {micro_batch} * data parallel degree {data_parallel}"
        raise bad(f"{name}: --global-batch-size", message, "change the batch or the degrees")
    seq_len = flags["--seq-length"] or (job.seq_len if job else 0)
    if not seq_len:
        raise bad(f"{name}: --seq-length", "is missing", "add it")
    return micro_batch, global_batch, seq_len


def _job(flags: Flags, job: Job | None, global_batch: int, seq_len: int, name: str) -> Job:
    if flags["--bf16"] and flags["--fp16"]:
        raise bad(f"{name}: --fp16", "stands beside --bf16", "keep one of them")
    precision: Precision = "fp16" if flags["--fp16"] else "bf16" if flags["--bf16"] else "fp32"
    fp8 = flags["--fp8-format"] is not None
    tokens = job.tokens if job else None
    if flags["--train-iters"]:
        tokens = float(flags["--train-iters"]) * global_batch * seq_len
    elif flags["--train-samples"]:
        tokens = float(flags["--train-samples"]) * seq_len
    base = job or Job(global_batch=global_batch, seq_len=seq_len)
    return replace(
        base,
        global_batch=global_batch,
        seq_len=seq_len,
        tokens=tokens,
        precision="fp8" if fp8 else precision,
        fp8_recipe=cast("Fp8Recipe", flags["--fp8-recipe"]) if fp8 else None,
        optimizer=cast("Optimizer", flags["--optimizer"]),
    )


def _stages(flags: Flags, model: Model, gpu: str, name: str) -> tuple[Stage, ...]:
    pipeline = flags["--pipeline-model-parallel-size"]
    tensor_parallel = flags["--tensor-model-parallel-size"]
    experts = any(kind.moe for kind in model.kinds)
    expert_tensor = flags["--expert-tensor-parallel-size"] or tensor_parallel
    recompute = _recompute(flags, name)
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
    pipeline, layout = flags["--pipeline-model-parallel-size"], flags["--pipeline-model-parallel-layout"]
    place = f"{name}: --pipeline-model-parallel-" + ("size" if layout is None else "layout")
    try:
        if layout is None:
            return layer_counts_of_split(layers, _split(flags, layers, pipeline))
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
    embedding = flags["--account-for-embedding-in-pipeline-split"]
    loss = flags["--account-for-loss-in-pipeline-split"]
    each, chunks = flags["--num-layers-per-virtual-pipeline-stage"], flags["--num-virtual-stages-per-pipeline-rank"]
    if each and chunks:
        raise ValueError("--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-… exclude each other")
    if each:
        total = layers + int(embedding) + int(loss)
        if total % (pipeline * each):
            raise ValueError(f"{total} layers do not divide by {pipeline} ranks times {each} layers")
        chunks = total // pipeline // each
    return EvenSplit(
        pipeline=pipeline,
        chunks=chunks or 1,
        first=flags["--decoder-first-pipeline-num-layers"],
        last=flags["--decoder-last-pipeline-num-layers"],
        embedding=embedding,
        loss=loss,
    )


def _recompute(flags: Flags, name: str) -> Recompute:
    granularity = "selective" if flags["--recompute-activations"] else flags["--recompute-granularity"]
    if granularity is None:
        return Recompute()
    method, layers = flags["--recompute-method"], flags["--recompute-num-layers"]
    if granularity == "full" and (method is None or not layers):
        flag = "--recompute-method" if method is None else "--recompute-num-layers"
        raise bad(f"{name}: {flag}", "is missing beside --recompute-granularity full", "Megatron-LM demands it")
    return Recompute(granularity=cast("Granularity", granularity), method=method, layers=layers)


def _optimizer(flags: Flags, name: str) -> OptimizerPlan:
    if flags["--use-torch-fsdp2"]:
        sharding: Sharding = "zero3"
    elif flags["--use-megatron-fsdp"]:
        sharding = STRATEGIES[flags["--data-parallel-sharding-strategy"]]
    else:
        sharding = "zero1" if flags["--use-distributed-optimizer"] else "none"
    offload = flags["--optimizer-offload-fraction"] if flags["--optimizer-cpu-offload"] else 0.0
    if offload > 1:
        raise bad(f"{name}: --optimizer-offload-fraction", f"is {offload:g}", "write a fraction from 0 to 1")
    return OptimizerPlan(sharding=sharding, offload=offload)


def _notes(flags: Flags, cluster: Cluster, world: int) -> tuple[str, ...]:
    notes = []
    if not {"gpus", "gpus_per_node"} & set(flags.launcher):
        notes.append(f"the text does not say how many GPUs run; all {world} of the cluster are assumed")
    elif world < cluster.gpus:
        notes.append(f"{world} of the cluster's {cluster.gpus} GPUs are used")
    if not any(flag in flags.given for flag in LENGTHS):
        notes.append("the text does not say how long the run is")
    if flags["--sequence-parallel"] and flags["--tensor-model-parallel-size"] == 1:
        notes.append("--sequence-parallel has no effect without tensor parallelism")
    return tuple(notes)
