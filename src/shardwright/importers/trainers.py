"""Configurations of DeepSpeed and Accelerate, and arguments of a Hugging Face Trainer, as Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.errors import Problem
from shardwright.importers.python_values import COMPUTED, Path
from shardwright.importers.settings import first

STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "1": 3, "2": 2, "3": 0}
STRATEGY_OF_STAGE = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
PRECISIONS = {"bf16": ("--bf16",), "fp16": ("--fp16",), "no": (), "none": ()}
FULL = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
LENGTHS = (
    *("max_seq_length", "max_seq_len", "model_max_length", "block_size", "cutoff_len", "max_length", "seq_length"),
    "seq_len",
)
ADAPTERS = ("use_peft", "use_lora", "lora_enable", "q_lora", "load_in_4bit", "load_in_8bit")
ADAMS = ("adam", "adamw", "adamw_hf", "adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "fusedadam", "cpuadam")


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """A configuration as arguments of Megatron-LM, with what is not modelled, the framework whose overheads count, and
    the name of the model where it has one."""

    words: tuple[str, ...]
    uncounted: tuple[str, ...]
    framework: str
    model: str | None = None


@dataclass(frozen=True, slots=True)
class TrainerFields:
    """Fields of a configuration by path, its name, and the problems found while it is read."""

    values: Mapping[Path, Any]
    name: str
    problems: list[Problem]

    def first(self, *leaves: str) -> Any:
        """Return the first of these fields that is said; "auto" leaves it to others."""
        value = first(self.values, *leaves)
        return None if value == "auto" else value

    def whole(self, leaf: str, otherwise: int) -> int:
        """Return a whole number, `otherwise` where nothing is said, and after naming what is wrong: also a number
        below 1, unless `otherwise` is as low."""
        value = next((value for path, value in self.values.items() if path[-1] == leaf), None)
        if value is COMPUTED:
            self.report(leaf, "is computed when the file runs", "write the value itself")
        elif isinstance(value, int) and not isinstance(value, bool):
            if value >= min(otherwise, 1):
                return value
            self.report(leaf, f"is {value}", f"write {min(otherwise, 1)} or more")
        elif value is not None and value != "auto":
            self.report(leaf, f"is {value!r}", "write a whole number, without quotes")
        return otherwise

    def beside(self, values: Mapping[Path, Any]) -> TrainerFields:
        """Return other fields of the same launch, whose problems join these."""
        return TrainerFields(values, self.name, self.problems)

    def report(self, leaf: str, message: str, hint: str) -> None:
        """Add a problem with a field."""
        self.problems.append(Problem(f"{self.name}: {leaf}", message, hint))


def sharding_words(stage: int) -> list[str]:
    """Return the arguments of ZeRO's stages, whose communication runs beside computation."""
    if stage not in STRATEGY_OF_STAGE:
        return ["--overlap-grad-reduce"]
    if stage == 1:
        return ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    strategy = ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", STRATEGY_OF_STAGE[stage]]
    return [*strategy, "--overlap-grad-reduce", "--overlap-param-gather"]


def batch_words(micro: int, total: int) -> list[str]:
    """Return micro-batch and global batch as arguments."""
    return ["--micro-batch-size", str(micro), "--global-batch-size", str(total)]


def deepspeed_settings(config: TrainerFields, trainer: Mapping[Path, Any], gpus: int) -> TrainerSettings:
    """Return a DeepSpeed configuration, whose "auto" values are those of a Hugging Face Trainer's arguments."""
    tensor = config.whole("autotp_size", 1)
    words = [*sharding_words(config.whole("stage", 0)), *_deepspeed_batch(config, trainer, max(gpus // tensor, 1))]
    words += [*_trainer_words(config.beside(trainer)), "--tensor-model-parallel-size", str(tensor)]
    sections = dict(config.values)
    states = {leaf: sections.get((leaf, "enabled"), "auto") for leaf in ("bf16", "fp16")}
    states["bf16"] = sections.get(("bfloat16", "enabled"), states["bf16"])  # its older name
    if "auto" in states.values() and True not in states.values():
        words += _precision_words(config, trainer)
    words += [flag for leaf, state in states.items() for flag in PRECISIONS[leaf] if state is True]
    devices = {path[-2]: value for path, value in config.values.items() if path[-1] == "device"}
    if devices.get("offload_optimizer") == "cpu":
        words += ["--optimizer-cpu-offload", "--optimizer-offload-fraction", str(config.first("ratio") or 1.0)]
    for part, device in devices.items():
        if device not in ("none", None) and (part != "offload_optimizer" or device != "cpu"):
            config.report(part, f"is offloaded to {device}, which is not described", "use none")
    words += ["--grad-reduce-in-bf16"] if config.first("communication_data_type") == "bf16" else []
    uncounted = [key for key in ("partition_activations", "cpu_checkpointing") if config.first(key) is True]
    uncounted += _other_optimizer(sections.get(("optimizer", "type")) or first(trainer, "optim"))
    _refuse_adapters(config, trainer)
    return TrainerSettings(tuple(words), tuple(uncounted), "deepspeed", first(trainer, "model_name_or_path"))


def _deepspeed_batch(config: TrainerFields, trainer: Mapping[Path, Any], ranks: int) -> list[str]:
    """The batch, of which two of three figures may be said: DeepSpeed refuses three that do not agree."""
    total, told = config.whole("train_batch_size", 0), config.beside(trainer)
    micro = config.whole("train_micro_batch_size_per_gpu", 0) or told.whole("per_device_train_batch_size", 0)
    steps = config.whole("gradient_accumulation_steps", 0) or told.whole("gradient_accumulation_steps", 0)
    if not micro and not total:
        if not told.first("per_device_train_batch_size"):
            hint = "write the number, or give the launch script that has it"
            config.report("train_micro_batch_size_per_gpu", "is missing", hint)
        return []
    steps = steps or max(total // (micro * ranks) if micro else 1, 1)
    micro = micro or max(total // (steps * ranks), 1)
    if total and total != micro * steps * ranks:
        message = f"is {total}, not micro-batch {micro} * {steps} accumulation steps * {ranks} data-parallel GPUs"
        config.report("train_batch_size", message, "correct one of them, or give the cluster that it is for")
    return batch_words(micro, micro * steps * ranks)


def accelerate_settings(config: TrainerFields, trainer: Mapping[Path, Any], gpus: int) -> TrainerSettings:
    """Return an Accelerate configuration with the arguments of the script that it starts."""
    told = {("mixed_precision",): config.first("mixed_precision"), **trainer}
    if str(config.first("distributed_type")).upper() == "DEEPSPEED":
        parts = ("offload_optimizer", "offload_param")
        stage = config.first("zero_stage")
        inner = {(part, "device"): config.first(f"{part}_device") or "none" for part in parts} | {
            ("zero_optimization", "stage"): 2 if stage is None else stage,
            ("gradient_accumulation_steps",): config.first("gradient_accumulation_steps"),
        }
        return deepspeed_settings(config.beside(inner), told, gpus)
    stage = _fsdp_stage(config) if str(config.first("distributed_type")).upper() == "FSDP" else 0
    if config.whole("parallelism_config_sp_size", 1) > 1:
        message = "sequences split by heads from end to end (Ulysses) are not described"
        config.report("parallelism_config_sp_size", message, "write 1")
    tensor, context = config.whole("parallelism_config_tp_size", 1), config.whole("parallelism_config_cp_size", 1)
    arguments = config.beside(trainer)
    micro, steps = arguments.whole("per_device_train_batch_size", 1), arguments.whole("gradient_accumulation_steps", 1)
    if arguments.first("per_device_train_batch_size") is None:
        config.report("per_device_train_batch_size", "is missing", "give the launch script, whose arguments have it")
    words = [*sharding_words(stage), *batch_words(micro, micro * steps * max(gpus // (tensor * context), 1))]
    words += ["--tensor-model-parallel-size", str(tensor), "--context-parallel-size", str(context)]
    words += [*_trainer_words(arguments), *_precision_words(config, told)]
    words += FULL if config.first("fsdp_activation_checkpointing") is True else ()
    _refuse_adapters(config, trainer)
    uncounted = tuple(_other_optimizer(first(trainer, "optim")))
    return TrainerSettings(tuple(words), uncounted, "fsdp", first(trainer, "model_name_or_path"))


def _fsdp_stage(config: TrainerFields) -> int:
    """Return the stage of ZeRO that FSDP's strategy is."""
    strategy = str(config.first("fsdp_sharding_strategy") or "FULL_SHARD").upper()
    copies = "parallelism_config_dp_replicate_size"
    if strategy not in STRATEGIES:
        config.report("fsdp_sharding_strategy", f"{strategy} is not described", "use FULL_SHARD or SHARD_GRAD_OP")
    if config.first("fsdp_offload_params") is True:
        config.report("fsdp_offload_params", "offload of weights is not described", "write false")
    if config.whole(copies, 1) > 1:
        config.report(copies, "hybrid sharding is not described", "shard over all ranks")
    if config.first("fsdp_version") == 2 and config.first("fsdp_reshard_after_forward") is False:
        return 2
    return STRATEGIES.get(strategy, 0)


def fsdp_of_trainer(trainer: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return what a Trainer is told of FSDP (`--fsdp "full_shard auto_wrap"`) as fields of Accelerate's."""
    words = str(first(trainer, "fsdp") or "").split()
    if not words:
        return {}
    strategy = next((word for word in words if word not in ("auto_wrap", "offload")), "full_shard")
    fields = {"distributed_type": "FSDP", "fsdp_sharding_strategy": strategy, "fsdp_offload_params": "offload" in words}
    return {(leaf,): value for leaf, value in fields.items()}


def _precision_words(config: TrainerFields, trainer: Mapping[Path, Any]) -> tuple[str, ...]:
    """The types of a Trainer's own switches, else those that Accelerate is told."""
    switched = next((name for name in ("bf16", "fp16") if first(trainer, name) is True), None)
    told = switched or first(trainer, "mixed_precision") or "no"
    if str(told).casefold() not in PRECISIONS:
        config.report("mixed_precision", f"is {told}, which is not described here", "use bf16, fp16 or no")
    return PRECISIONS.get(str(told).casefold(), ())


def _trainer_words(trainer: TrainerFields) -> list[str]:
    """What a Hugging Face Trainer's arguments say beside batch and precision."""
    words = list(FULL) if trainer.first("gradient_checkpointing") is True else []
    if length := trainer.first(*LENGTHS):
        words += ["--seq-length", str(length)]
    if (steps := trainer.whole("max_steps", -1)) > 0:
        words += ["--train-iters", str(steps)]
    return words


def _refuse_adapters(config: TrainerFields, trainer: Mapping[Path, Any]) -> None:
    """Name the switches that train adapters in place of all weights."""
    found = [name for name in ADAPTERS if first(trainer, name) is True]
    found += ["lora_dim"] if first(trainer, "lora_dim") else []
    found += ["finetuning_type"] if first(trainer, "finetuning_type") not in (None, "full") else []
    for name in found:
        config.report(name, "trains adapters, which a plan does not describe", "`shardwright fit` sizes LoRA and QLoRA")


def _other_optimizer(name: Any) -> list[str]:
    """What is not modelled of an optimizer that is not Adam."""
    return [] if name is None or str(name).casefold() in ADAMS else [f"optimizer {name} (priced as Adam)"]
