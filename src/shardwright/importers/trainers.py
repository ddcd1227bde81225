"""Configurations of DeepSpeed and Accelerate, and arguments of a Hugging Face Trainer, as Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import cast

from shardwright.exporters.support.traits import ON_THE_GPU
from shardwright.files import shipped_table
from shardwright.importers.adapters import peft_of
from shardwright.importers.choices import (
    SIXTEEN,
    adapter_kernels,
    copies_notes,
    keeps_sixteen_bits,
    liger_of,
    loss_notes,
    offloads_activations,
    options_of,
    own_loss,
    plugins_uncounted,
    preference_of,
)
from shardwright.importers.fields import TrainerFields, TrainerSettings, job_of
from shardwright.records import record
from shardwright.spec.job import PROJECTED, Optimizer, Part
from shardwright.spec.options import GradientSync, GradReduce

STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "TRUE": 3, "1": 3, "2": 2, "3": 0}
STRATEGY_OF_STAGE = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
PRECISIONS = {"bf16": ("--bf16",), "fp16": ("--fp16",)}
FULL = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
LENGTHS = (
    *("max_seq_length", "max_seq_len", "model_max_length", "block_size", "cutoff_len", "max_length", "seq_length"),
    "seq_len",
)
NO_MOMENTUM = ("0", "0.0")
# Optimizers whose state or update is of another kind than Adam's, by what their names contain.
OTHER_UPDATES = (
    "galore",
    "apollo",
    "lomo",
    "badam",
    "muon",
    "dion",
    "adafactor",
    "adam_mini",
    "onebit",
    "zerooneadam",
    "lamb",
    "lion",
    "adalr",
    "cpuoffloadoptimizer",
)


def sharding_words(stage: int) -> list[str]:
    """Return the arguments of ZeRO's stages, whose communication runs beside computation."""
    if stage not in STRATEGY_OF_STAGE:
        return ["--overlap-grad-reduce"]
    if stage == 1:
        return ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    strategy = ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", STRATEGY_OF_STAGE[stage]]
    return [*strategy, "--overlap-grad-reduce", "--overlap-param-gather"]


def offload_words(part: object) -> list[str]:
    """Return the arguments of a part of the optimizer's state in host memory."""
    return ["--optimizer-cpu-offload", "--optimizer-offload-fraction", str(part)]


def batch_words(micro: int, total: int) -> list[str]:
    """Return micro-batch and global batch as arguments."""
    return ["--micro-batch-size", str(micro), "--global-batch-size", str(total)]


def deepspeed_settings(config: TrainerFields, trainer: TrainerFields, gpus: int) -> TrainerSettings:
    """Return a DeepSpeed configuration, whose "auto" values are those that a Trainer and Accelerate are told."""
    for name in PROJECTED:
        if trainer.first(f"use_{name}") is True:
            trainer.report(f"use_{name}", "projects whole matrices, which DeepSpeed's optimizer has not", "use DDP")
    tensor, context = _degrees(trainer, gpus)
    tensor = config.whole("autotp_size", tensor)
    stage = config.whole("stage", 0)
    words = [*sharding_words(stage), *_deepspeed_batch(config, trainer, max(gpus // (tensor * context), 1))]
    words += [*_trainer_words(trainer), "--tensor-model-parallel-size", str(tensor)]
    words += ["--context-parallel-size", str(context)]
    precision, notes = _deepspeed_precision(config, trainer)
    devices = {path[-2]: value for path, value in config.values.items() if path[-1] == "device"}
    if devices.get("offload_optimizer") == "cpu":
        words += offload_words(config.number("ratio", 1.0))
    away = devices.get("offload_param") == "cpu"
    if away and stage < 3:
        config.report(
            "offload_param", "goes with ZeRO-3 alone, whose shards it offloads", "use stage 3, or device none"
        )
    optimizer, uncounted = optimizer_of(config, "type") if config.first("type") else optimizer_of(trainer, "optim")
    if optimizer == "foreach_adam":  # its copy of a moment has room where gradients were copied (`flattens`)
        optimizer, uncounted = "adam", (*uncounted, "optim adamw_torch (an update of several kernels)")
    basics = Basics(
        precision=precision,
        sharded=stage == 3,
        deepspeed=True,
        optimizer=optimizer,
        weights_away=away and stage == 3,
        grad_reduce="bf16" if config.first("communication_data_type") == "bf16" else None,
    )
    return _settings(trainer, [*words, *precision], basics, uncounted, notes)


def _deepspeed_precision(config: TrainerFields, trainer: TrainerFields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the types that DeepSpeed is told, else those of the Trainer, and what is assumed."""
    sections = dict(config.values)
    states = {leaf: sections.get((leaf, "enabled"), "auto") for leaf in ("bf16", "fp16")}
    states["bf16"] = sections.get(("bfloat16", "enabled"), states["bf16"])  # its older name
    on = [leaf for leaf, state in states.items() if state is True]
    if not on and "auto" in states.values():
        return _precision(trainer)
    return tuple(flag for leaf in on for flag in PRECISIONS[leaf]), ()


def _deepspeed_batch(config: TrainerFields, trainer: TrainerFields, ranks: int) -> list[str]:
    """The batch, of which two of three figures may be said: DeepSpeed refuses three that do not agree."""
    total = config.whole("train_batch_size", 0)
    micro = _agreed(config, "train_micro_batch_size_per_gpu", trainer, "per_device_train_batch_size")
    steps = _agreed(config, "gradient_accumulation_steps", trainer, "gradient_accumulation_steps")
    if not micro and not total:
        if not trainer.first("per_device_train_batch_size"):
            hint = "write the number, or give the launch script that has it"
            config.report("train_micro_batch_size_per_gpu", "is missing", hint)
        return []
    steps = steps or max(total // (micro * ranks) if micro else 1, 1)
    micro = micro or max(total // (steps * ranks), 1)
    if total and total != micro * steps * ranks:
        message = f"is {total}, not micro-batch {micro} * {steps} accumulation steps * {ranks} data-parallel GPUs"
        config.report("train_batch_size", message, "correct one of them, or give the cluster that it is for")
    return batch_words(micro, micro * steps * ranks)


def _agreed(config: TrainerFields, leaf: str, trainer: TrainerFields, argument: str) -> int:
    """Return a number that DeepSpeed's file or a Trainer's argument says, which stops where they differ; 0 for none."""
    written, given = config.whole(leaf, 0), trainer.whole(argument, 0)
    if written and given and written != given:
        config.report(leaf, f"is {written}, beside {argument} {given}", "write auto into DeepSpeed's configuration")
    return written or given


def accelerate_settings(fields: TrainerFields, gpus: int) -> TrainerSettings:
    """Return what Accelerate's configuration and the arguments of the script that it starts say."""
    kind = str(fields.first("distributed_type")).upper()
    if kind == "DEEPSPEED":
        parts = ("offload_optimizer", "offload_param")
        stage = fields.first("zero_stage")
        inner = {(part, "device"): fields.first(f"{part}_device") or "none" for part in parts} | {
            ("zero_optimization", "stage"): 2 if stage is None else stage,
            ("gradient_accumulation_steps",): fields.first("gradient_accumulation_steps"),
        }
        return deepspeed_settings(fields.beside(inner), fields, gpus)
    sharded = kind == "FSDP" or fields.first("fsdp") not in (None, False, "", [])
    tensor, context = _degrees(fields, gpus)
    micro, steps = fields.whole("per_device_train_batch_size", 1), fields.whole("gradient_accumulation_steps", 1)
    if fields.first("per_device_train_batch_size") is None:
        fields.report("per_device_train_batch_size", "is missing", "give the launch script, whose arguments have it")
    projected, rank = _projected(fields)
    optimizer, uncounted = optimizer_of(fields, "optim") if projected is None else (projected, _layerwise(fields))
    words = [*_fsdp_words(fields, optimizer)] if sharded else [*sharding_words(0)]
    words += batch_words(micro, micro * steps * max(gpus // (tensor * context), 1))
    words += ["--tensor-model-parallel-size", str(tensor), "--context-parallel-size", str(context)]
    precision, notes = _precision(fields)
    words += [*_trainer_words(fields), *precision]
    words += FULL if fields.first("fsdp_activation_checkpointing") is True else ()
    if projected is not None and sharded:
        fields.report(
            "optim", f"{projected} projects whole matrices, of which FSDP leaves a part", "train without FSDP"
        )
    basics = Basics(
        precision=precision,
        sharded=sharded,
        optimizer=optimizer,
        optimizer_rank=rank,
        gradient_sync=_gradient_sync(fields, sharded, steps),
    )
    return _settings(fields, words, basics, uncounted, notes)


@record
class Basics:
    """What was read of a Trainer's run beside its arguments: those of its type, whether GPUs share the weights, and
    whether their parts are in host memory."""

    precision: tuple[str, ...]
    sharded: bool
    deepspeed: bool = False
    optimizer: Optimizer = "adam"
    optimizer_rank: int | None = None
    gradient_sync: GradientSync | None = None
    weights_away: bool = False
    grad_reduce: GradReduce | None = None


def _settings(
    fields: TrainerFields, words: list[str], basics: Basics, uncounted: tuple[str, ...], notes: tuple[str, ...]
) -> TrainerSettings:
    """Return settings with the adapters and options of a Trainer's fields."""
    peft = peft_of(fields, sharded=basics.sharded, casts=basics.deepspeed)
    liger, kernels = liger_of(fields)
    preference = preference_of(fields)
    mixed, sharded = _mixed(fields) is not None, basics.sharded or basics.deepspeed
    kept = peft is None and not basics.deepspeed and keeps_sixteen_bits(fields, mixed=mixed, sharded=sharded)
    options = options_of(
        loss=None if preference is not None else "chunked" if liger else own_loss(fields),
        offloaded=offloads_activations(fields, words, adapters=peft is not None),
        sixteen=kept and "--bf16" in basics.precision,
    )
    job = job_of(
        "deepspeed" if basics.deepspeed else "fsdp",
        options=replace(
            options,
            grad_reduce=basics.grad_reduce,
            gradient_sync=basics.gradient_sync,
            weight_offload="host" if basics.weights_away else None,
        ),
        optimizer=basics.optimizer,
        optimizer_rank=basics.optimizer_rank,
        freeze=(_frozen(fields) or None) if peft is None else None,
        preference=preference,
    )
    return TrainerSettings(
        words=tuple(words),
        uncounted=(*uncounted, *kernels, *plugins_uncounted(fields), *adapter_kernels(fields)),
        job=job,
        model=None if (model := fields.first("model_name_or_path", "model_name", "model_id")) is None else str(model),
        notes=(
            *notes,
            *loss_notes(fields, preference, sharded=basics.sharded and peft is None and not basics.deepspeed),
            *(copies_notes(fields, mixed=mixed, sharded=sharded) if peft is None else ()),
        ),
        peft=peft,
        liger="" if preference is not None or own_loss(fields) else liger,
    )


def _frozen(fields: TrainerFields) -> tuple[Part, ...]:
    """Return the parts of a model that sees images which LLaMA-Factory keeps as they are: vision tower and projector
    unless it is told otherwise (llamafactory/hparams/finetuning_args.py)."""
    keys: Mapping[str, Part] = {
        "freeze_vision_tower": "vision",
        "freeze_multi_modal_projector": "projector",
        "freeze_language_model": "language",
    }
    return tuple(part for key, part in keys.items() if fields.first(key) is True)


def _projected(fields: TrainerFields) -> tuple[Optimizer | None, int | None]:
    """Return an optimizer of projected gradients and its rank, none where it is another: by a Trainer's `optim` and
    `optim_args`, or LLaMA-Factory's switches, whose usual rank is 16 (hparams/finetuning_args.py)."""
    name = _optimizer_name(fields, "optim")
    for projected in PROJECTED:
        if fields.first(f"use_{projected}") is True:
            return projected, fields.whole(f"{projected}_rank", 16)
        if name in (f"{projected}_adamw", f"{projected}_adamw_layerwise"):
            return projected, _rank_of(fields)
    return None, None


def _optimizer_arguments(fields: TrainerFields) -> dict[str, str]:
    """Return `optim_args`, which are words "name=value" or a mapping."""
    words = str(fields.first("optim_args") or "").replace(" ", "").split(",")
    said = dict(word.partition("=")[::2] for word in words)
    return said | {path[-1]: str(value) for path, value in fields.values.items() if path[-2:-1] == ("optim_args",)}


def _rank_of(fields: TrainerFields) -> int | None:
    """Return the rank in `optim_args`; none where they leave it out."""
    rank = _optimizer_arguments(fields).get("rank")
    if rank is None or (rank.isdecimal() and int(rank)):
        return None if rank is None else int(rank)
    fields.report("optim_args", f"has the rank {rank}", "write a whole number from 1")
    return None


def _layerwise(fields: TrainerFields) -> tuple[str, ...]:
    """Return what of a Trainer's projected optimizer is not modelled: all linear modules of layers are taken for
    projected."""
    named = fields.first("optim_target_modules", "galore_target", "apollo_target") or "all-linear"
    words = " ".join(map(str, named)) if isinstance(named, list | tuple) else str(named)
    whole = words.replace("_", "-") in ("all", "all-linear") or ("attn" in words and "mlp" in words)
    layerwise = _optimizer_name(fields, "optim").endswith("layerwise") or any(
        fields.first(f"{name}_layerwise") is True for name in PROJECTED
    )
    return (
        *(("an update layer by layer within the backward pass, which keeps fewer gradients",) if layerwise else ()),
        *(() if whole else (f"an optimizer of some modules alone ({words})",)),
    )


def _gradient_sync(fields: TrainerFields, sharded: bool, steps: int) -> GradientSync | None:
    """Return when FSDP sums gradients: Accelerate keeps whole ones until the last micro-batch (`no_sync`), unless it is
    told otherwise (accelerate/accelerator.py 1.15: `accumulate`)."""
    every = fields.first("sync_each_batch") is True
    return "last" if sharded and steps > 1 and not every else None


def _degrees(fields: TrainerFields, gpus: int) -> tuple[int, int]:
    """Return the degrees of tensor and context parallelism, which leave the others to data parallelism."""
    if fields.whole("parallelism_config_sp_size", 1) > 1:
        message = "sequences split by heads from end to end (Ulysses) are not described"
        fields.report("parallelism_config_sp_size", message, "write 1")
    tensor, context = fields.whole("parallelism_config_tp_size", 1), fields.whole("parallelism_config_cp_size", 1)
    shards, copies = (fields.whole(f"parallelism_config_dp_{part}_size", 1) for part in ("shard", "replicate"))
    if copies > 1 and (shards > 1 or str(fields.first("distributed_type")).upper() == "FSDP"):
        fields.report(
            "parallelism_config_dp_replicate_size", "hybrid sharding is not described", "shard over all ranks"
        )
    if max(shards, copies) > 1 and tensor * context * shards * copies != gpus:
        message = f"is {shards}, which with the other degrees makes {tensor * context * shards * copies} of {gpus} GPUs"
        fields.report("parallelism_config_dp_shard_size", message, "make the product the number of processes")
    return tensor, context


def _fsdp_words(fields: TrainerFields, optimizer: Optimizer) -> list[str]:
    """Return the arguments of what FSDP shards and offloads. Its strategy is a stage of ZeRO: the Trainer's words
    (`full_shard auto_wrap`) go before Accelerate's."""
    words = fields.first("fsdp")
    words = " ".join(map(str, words)) if isinstance(words, list) else str(words or "")
    named = [word for word in words.split() if word not in ("auto_wrap", "offload")]
    reshard = fields.first("fsdp_reshard_after_forward")
    again = str(reshard).upper() if str(reshard).upper() in STRATEGIES and not isinstance(reshard, bool) else None
    strategy = str(next(iter(named), None) or fields.first("fsdp_sharding_strategy") or again or "FULL_SHARD").upper()
    if strategy not in STRATEGIES:
        fields.report("fsdp_sharding_strategy", f"{strategy} is not described", "use FULL_SHARD or SHARD_GRAD_OP")
    stage = STRATEGIES.get(strategy, 0)
    stage = 2 if reshard is False and stage == 3 else stage
    offloads = fields.first("fsdp_offload_params") is True or "offload" in words.split()
    if offloads:
        refuse_offload(fields, "fsdp_offload_params", stage, optimizer)
    return [*sharding_words(stage), *(offload_words(1.0) if offloads else ())]


def refuse_offload(fields: TrainerFields, leaf: str, stage: int, optimizer: Optimizer) -> None:
    """Refuse FSDP's offload of all that a GPU keeps where it is of no use here."""
    if stage < 3:
        fields.report(leaf, "offload of weights that are not sharded is not described", "write false")
    elif optimizer in ON_THE_GPU:
        fields.report(leaf, f"goes with no optimizer of bitsandbytes ({optimizer}), which runs on GPUs", "write false")


def _mixed(fields: TrainerFields) -> str | None:
    """Return the mixed precision of a Trainer's own switches, else that which Accelerate is told, None for none."""
    switched = next((name for name in PRECISIONS if fields.first(name) is True), None)
    name = switched or str(fields.first("mixed_precision")).casefold()
    return name if name in PRECISIONS else None


def _precision(fields: TrainerFields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the mixed precision, else the type in which weights are loaded; and that it is fp32 where neither is
    said."""
    if all(fields.first(key) is True for key in PRECISIONS):
        fields.report("fp16", "is true, and so is bf16", "write one of them")
    name = _mixed(fields) or ("bf16" if fields.first("dtype") in SIXTEEN else None)
    said = name or any(fields.first(key) is not None for key in ("fp16", "bf16", "mixed_precision"))
    note = "neither bf16 nor fp16 is said: fp32 is priced, the trainer's default"
    return PRECISIONS.get(str(name), ()), () if said else (note,)


def _trainer_words(fields: TrainerFields) -> list[str]:
    """What a Hugging Face Trainer's arguments say beside batch and precision."""
    words = list(FULL) if fields.first("gradient_checkpointing") is True else []
    if length := fields.first(*LENGTHS):
        words += ["--seq-length", str(length)]
    if (steps := fields.whole("max_steps", -1)) > 0:
        words += ["--train-iters", str(steps)]
    return [*words, *(("--attention-backend", "unfused") if fields.first("attn_implementation") == "eager" else ())]


def _optimizer_name(config: TrainerFields, leaf: str) -> str:
    return str(config.first(leaf) or "adamw").rsplit(".", 1)[-1].casefold()  # torchtune names classes in full


@cache
def _optimizers() -> Mapping[str, Optimizer]:
    rows = shipped_table("shardwright.importers", "optimizers.csv")
    return {name: cast("Optimizer", row["optimizer"]) for row in rows for name in row["names"].split()}


def optimizer_of(config: TrainerFields, leaf: str) -> tuple[Optimizer, tuple[str, ...]]:
    """Return an optimizer, and what is not modelled of one that is priced as Adam."""
    name = _optimizer_name(config, leaf)
    if name == "sgd":
        momentum = str(config.first("momentum") or _optimizer_arguments(config).get("momentum", 0))
        return "plain_sgd" if momentum in NO_MOMENTUM else "sgd", ()
    if name in _optimizers():
        return _optimizers()[name], ()
    if any(part in name for part in OTHER_UPDATES):
        config.report(leaf, f"{name} keeps other state than Adam, which is not described", "use AdamW")
    return "adam", (f"optimizer {config.first(leaf)} (priced as Adam)",)
