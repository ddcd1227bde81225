"""DeepSpeed, Accelerate and torchtitan configurations as Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.errors import Problem
from shardwright.importers.python_values import COMPUTED, Path
from shardwright.importers.settings import first

STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "1": 3, "2": 2, "3": 0}
STRATEGY_OF_STAGE = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
LENGTHS = (
    *("max_seq_length", "max_seq_len", "model_max_length", "block_size", "cutoff_len", "max_length", "seq_length"),
    "seq_len",
)


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """A configuration as arguments of Megatron-LM, with what is not modelled, the framework whose overheads count, GPUs
    where it says how many, and the name of the model where it has one."""

    words: tuple[str, ...]
    uncounted: tuple[str, ...]
    framework: str
    gpus: int | None = None
    model: str | None = None


def _number(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _sharding(stage: int) -> list[str]:
    """Arguments of ZeRO's stages, whose communication runs beside computation."""
    if stage not in STRATEGY_OF_STAGE:
        return ["--overlap-grad-reduce"]
    if stage == 1:
        return ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    strategy = ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", STRATEGY_OF_STAGE[stage]]
    return [*strategy, "--overlap-grad-reduce", "--overlap-param-gather"]


def _batch(micro: int, accumulation: int, ranks: int, total: int | None) -> list[str]:
    """Micro-batch and global batch; `ranks` are the data-parallel ones."""
    return ["--micro-batch-size", str(micro), "--global-batch-size", str(total or micro * accumulation * ranks)]


def deepspeed_settings(
    config: Mapping[Path, Any], trainer: Mapping[Path, Any], gpus: int, name: str, problems: list[Problem]
) -> TrainerSettings:
    """Return a DeepSpeed configuration, whose "auto" values are those of a Hugging Face Trainer's arguments."""

    def said(*leaves: str) -> Any:
        value = first(config, *leaves)
        return None if value == "auto" else value

    stage = _number(said("stage", "zero_stage"), 0)
    tensor = _number(said("autotp_size"), 1)
    ranks = gpus // tensor
    total = said("train_batch_size")
    micro = said("train_micro_batch_size_per_gpu") or first(trainer, "per_device_train_batch_size")
    steps = said("gradient_accumulation_steps") or first(trainer, "gradient_accumulation_steps")
    if not micro and total:
        micro = total // (ranks * (steps or 1))
    if not micro:
        hint = "write the number, or give the launch script that has it"
        problems.append(Problem(f"{name}: train_micro_batch_size_per_gpu", "is missing", hint))
    words = [*_sharding(stage), *_batch(micro or 1, steps or 1, ranks, total), *_trainer_words(trainer)]
    words += ["--tensor-model-parallel-size", str(tensor)]
    fields = dict(config)
    for leaf, flag in (("bf16", "--bf16"), ("fp16", "--fp16")):
        enabled = fields.get((leaf, "enabled"))
        words += [flag] if enabled is True or (enabled == "auto" and first(trainer, leaf) is True) else []
    devices = {path[-2]: value for path, value in config.items() if path[-1] == "device"}
    if devices.get("offload_optimizer") == "cpu":
        words += ["--optimizer-cpu-offload", "--optimizer-offload-fraction", str(first(config, "ratio") or 1.0)]
    for part, device in devices.items():
        if device not in ("none", None) and (part != "offload_optimizer" or device != "cpu"):
            problems.append(Problem(f"{name}: {part}", f"is offloaded to {device}, which is not described", "use none"))
    words += ["--grad-reduce-in-bf16"] if said("communication_data_type") == "bf16" else []
    uncounted = [key for key in ("partition_activations", "cpu_checkpointing") if said(key) is True]
    model = first(trainer, "model_name_or_path")
    return TrainerSettings(tuple(words), tuple(uncounted), "deepspeed", gpus, model)


def accelerate_settings(
    config: Mapping[Path, Any], trainer: Mapping[Path, Any], gpus: int, name: str, problems: list[Problem]
) -> TrainerSettings:
    """Return an Accelerate configuration with the arguments of the script that it starts."""
    if first(config, "distributed_type") == "DEEPSPEED":
        inner: dict[Path, Any] = {("zero_optimization", "stage"): first(config, "zero_stage")}
        inner[("gradient_accumulation_steps",)] = first(config, "gradient_accumulation_steps")
        device = first(config, "offload_optimizer_device") or "none"
        inner[("offload_optimizer", "device")] = device
        inner[(str(first(config, "mixed_precision")), "enabled")] = True
        return deepspeed_settings(inner, trainer, gpus, name, problems)
    strategy = str(first(config, "fsdp_sharding_strategy") or "FULL_SHARD")
    if strategy not in STRATEGIES:
        message = f"{strategy} is not described"
        problems.append(Problem(f"{name}: fsdp_sharding_strategy", message, "use FULL_SHARD or SHARD_GRAD_OP"))
    stage = STRATEGIES.get(strategy, 0) if first(config, "distributed_type") == "FSDP" else 0
    if first(config, "fsdp_version") == 2 and first(config, "fsdp_reshard_after_forward") is False:
        stage = 2
    if first(config, "fsdp_offload_params") is True:
        problems.append(Problem(f"{name}: fsdp_offload_params", "offload of weights is not described", "write false"))
    copies = "parallelism_config_dp_replicate_size"
    if stage and _number(first(config, copies), 1) > 1:
        problems.append(Problem(f"{name}: {copies}", "hybrid sharding is not described", "shard over all ranks"))
    tensor = _number(first(config, "parallelism_config_tp_size"), 1)
    context = _number(first(config, "parallelism_config_cp_size"), 1)
    micro = first(trainer, "per_device_train_batch_size")
    if not micro:
        hint = "give the launch script, whose arguments have it"
        problems.append(Problem(f"{name}: per_device_train_batch_size", "is missing", hint))
    steps = first(trainer, "gradient_accumulation_steps") or 1
    ranks = gpus // (tensor * context)
    words = [*_sharding(stage), *_batch(micro or 1, steps, ranks, None), *_trainer_words(trainer)]
    words += ["--tensor-model-parallel-size", str(tensor), "--context-parallel-size", str(context)]
    if first(config, "fsdp_activation_checkpointing") is True:
        words += ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    precision = first(trainer, "mixed_precision") or first(config, "mixed_precision")
    words += {"bf16": ["--bf16"], "fp16": ["--fp16"]}.get(str(precision), [])
    return TrainerSettings(tuple(words), (), "fsdp", gpus, first(trainer, "model_name_or_path"))


def _trainer_words(trainer: Mapping[Path, Any]) -> list[str]:
    """What a Hugging Face Trainer's arguments say beside the batch."""
    words = []
    if first(trainer, "gradient_checkpointing") is True:
        words += ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    if length := first(trainer, *LENGTHS):
        words += ["--seq-length", str(length)]
    if steps := first(trainer, "max_steps"):
        words += ["--train-iters", str(steps)] if _number(steps, 0) > 0 else []
    return words


def torchtitan_settings(config: Mapping[Path, Any], gpus: int, name: str, problems: list[Problem]) -> TrainerSettings:
    """Return a torchtitan configuration, of its TOML (to 0.2) or its Python (0.3)."""

    def degree(leaf: str, otherwise: int = 1) -> int:
        value = next((v for path, v in config.items() if path[-1] == leaf), otherwise)
        if value is COMPUTED:
            problems.append(Problem(f"{name}: {leaf}", "is computed when the file runs", "write the value itself"))
        return _number(value, otherwise)

    tensor, context = degree("tensor_parallel_degree"), degree("context_parallel_degree")
    depth, replicas = degree("pipeline_parallel_degree"), degree("data_parallel_replicate_degree")
    shards = degree("data_parallel_shard_degree", -1)
    ranks = max(gpus // (tensor * context * depth), 1)
    shards = ranks // replicas if shards < 1 else shards
    sharers = shards * context  # `dp_shard_cp` of its parallel_dims.py: parts of a sequence share the state, too
    if replicas > 1 and sharers > 1:
        message = "hybrid sharding is not described"
        problems.append(Problem(f"{name}: data_parallel_replicate_degree", message, "shard over all ranks, or none"))
    local = degree("local_batch_size", degree("batch_size"))
    micro = degree("pipeline_parallel_microbatch_size") if depth > 1 else local
    total = degree("global_batch_size", -1)
    reshard = first(config, "fsdp_reshard_after_forward") or "default"
    stage = 0 if sharers <= 1 else 2 if reshard == "never" or (reshard == "default" and depth > 1) else 3
    words = [*_sharding(stage), *_batch(micro, local // micro if depth > 1 else 1, ranks, total if total > 0 else None)]
    words += ["--seq-length", str(degree("seq_len", 2048)), "--tensor-model-parallel-size", str(tensor)]
    words += ["--pipeline-model-parallel-size", str(depth), "--context-parallel-size", str(context), "--bf16"]
    words += ["--expert-model-parallel-size", str(degree("expert_parallel_degree"))]
    words += ["--sequence-parallel"] if tensor > 1 else []
    if first(config, "pipeline_parallel_schedule") == "Interleaved1F1B" and depth > 1:
        each = degree("pipeline_parallel_layers_per_stage", 0)
        words += ["--num-layers-per-virtual-pipeline-stage", str(each)] if each else []
    mode = {"FullAC": "full", "SelectiveAC": "selective"}.get(str(first(config, "activation_checkpoint")))
    mode = mode or dict(config).get(("activation_checkpoint", "mode"), "none")
    if mode == "full":
        words += ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    elif mode == "selective":
        words += ["--recompute-granularity", "selective"]
    if steps := degree("steps", 0):
        words += ["--train-iters", str(steps)]
    uncounted = [leaf for leaf in ("enable_cpu_offload", "enable_async_tensor_parallel") if first(config, leaf) is True]
    flavor = first(config, "flavor")
    model = f"{first(config, 'family') or dict(config).get(('model', 'name'), '')} {flavor}" if flavor else None
    return TrainerSettings(tuple(words), tuple(uncounted), "torchtitan", gpus, model)
