"""Configurations of torchtune's recipes of full fine-tuning, of LoRA and of DPO (0.6), as Megatron-LM's arguments."""

from __future__ import annotations

import re

from shardwright.importers.adapters import alpha_of
from shardwright.importers.choices import offloads_activations, options_of
from shardwright.importers.fields import TrainerFields, TrainerSettings, job_of, words_of
from shardwright.importers.trainers import (
    FULL,
    batch_words,
    offload_words,
    optimizer_of,
    refuse_offload,
    sharding_words,
)
from shardwright.spec.adapter import LINEAR, Adapter, Target
from shardwright.spec.preference import Preference, parse_preference

FULL_RECIPES = ("full_finetune_distributed", "full_finetune_single_device")
ADAPTER_RECIPES = ("lora_finetune_distributed", "lora_finetune_single_device")
DPO_RECIPES = ("full_dpo_distributed", "lora_dpo_distributed", "lora_dpo_single_device")
RECIPES = (*FULL_RECIPES, *ADAPTER_RECIPES, *DPO_RECIPES)
# The names of attention's projections in its builders; `apply_lora_to_mlp` says the rest of a layer.
ATTENTION: dict[str, Target] = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
PREFERENCES, PLAIN_LOSS = "torchtune.rlhf.loss.", "torch.nn.CrossEntropyLoss"
DPO_LOSSES = ("DPOLoss", "RSOLoss")
FEED_FORWARD: tuple[Target, ...] = ("gate_proj", "up_proj", "down_proj")
BUILDER = re.compile(r"^q?lora_")


def trains_adapters(component: str) -> bool:
    """Return whether a builder makes a model with adapters: `torchtune.models.llama3_1.lora_llama3_1_8b`."""
    return BUILDER.match(component.rsplit(".", 1)[-1]) is not None


def runs(recipe: str, component: str, loss: str) -> bool:
    """Return whether a recipe trains what a builder makes, with or without adapters, by such a loss."""
    adapters = recipe in ADAPTER_RECIPES or recipe.startswith("lora_")
    return trains_adapters(component) == adapters and loss.startswith(PREFERENCES) == (recipe in DPO_RECIPES)


def _preference(config: TrainerFields) -> tuple[Preference | None, tuple[str, ...]]:
    """Return the loss over preferences, none for one of the next token, and what is not modelled of that."""
    loss = str(config.first("loss") or PLAIN_LOSS)
    name = loss.removeprefix(PREFERENCES)
    if name == loss:
        return None, () if loss == PLAIN_LOSS else (
            f"loss._component_ {loss} (the loss goes over parts of the logits)",
        )
    if name not in DPO_LOSSES:
        config.report("loss", f"is {name}, which is not described", f"use {' or '.join(DPO_LOSSES)}")
    return parse_preference("dpo:torchtune"), ()


def torchtune_settings(config: TrainerFields, gpus: int) -> TrainerSettings:
    """Return a configuration of one of `RECIPES`, of one device where one GPU runs."""
    component = str(config.first("model") or "")
    tensor = config.whole("tensor_parallel_dim", 1)
    if config.first("optimizer") is None:
        config.report("optimizer", "is missing: this trains nothing", "give the configuration of a training")
    if config.first("batch_size") is None:
        config.report("batch_size", "is missing", "write the sequences of a step on a GPU")
    micro, steps = config.whole("batch_size", 1), config.whole("gradient_accumulation_steps", 1)
    stage = 0 if gpus == 1 else 2 if config.first("fsdp_reshard_after_forward") is False else 3
    sixteen, offloads = config.first("dtype") == "bf16", config.first("fsdp_cpu_offload") is True and gpus > 1
    words = (
        *sharding_words(stage),
        *batch_words(micro, micro * steps * max(gpus // tensor, 1)),
        *words_of({"--tensor-model-parallel-size": tensor, "--seq-length": config.first("max_seq_len") or None}),
        *(FULL if config.first("enable_activation_checkpointing") is True else ()),
        *(offload_words(1.0) if offloads else ()),
        *words_of({"--bf16": sixteen}),
    )
    optimizer, uncounted = optimizer_of(config, "optimizer")
    if optimizer == "adam" and config.first("fused") is not True:
        optimizer = "foreach_adam"  # of torch.optim, unless it is told otherwise
    preference, parts = _preference(config)
    if offloads:
        refuse_offload(config, "fsdp_cpu_offload", stage, optimizer)
    adapter = _adapter(config, component)
    if adapter is not None and not sixteen:
        message = "is fp32, in which frozen weights are kept: they are described in 16 bits and fewer"
        config.report("dtype", message, "write bf16")
    options = options_of(
        loss=None,
        offloaded=offloads_activations(config, words, adapters=adapter is not None),
        sixteen=sixteen and adapter is None,
    )
    job = job_of("fsdp", options=options, optimizer=optimizer, adapter=adapter, preference=preference)
    return TrainerSettings(words, (*uncounted, *parts), job, torchtune_model(component))


def _adapter(config: TrainerFields, component: str) -> Adapter | None:
    """Return the adapters of a builder, by its own defaults (torchtune/models/llama3_1/_model_builders.py)."""
    if not trains_adapters(component):
        return None
    rank, named = config.whole("lora_r", 8), config.first("lora_attn_modules")
    if not isinstance(named, list | tuple) or any(str(name) not in ATTENTION for name in named):
        hint = f"write a list of {', '.join(ATTENTION)}"
        config.report("lora_attn_modules", "is missing" if named is None else f"is {named}", hint)
        named = ()
    beside = {ATTENTION[name] for name in named} | set(
        FEED_FORWARD if config.first("apply_lora_to_mlp") is True else ()
    )
    quantised = config.first("quantize_base") is True or "qlora_" in component
    return Adapter(
        rank=rank,
        dora=config.first("use_dora") is True,
        frozen="nf4" if quantised else "16-bit",
        targets=tuple(target for target in LINEAR if target in beside),
        alpha=alpha_of(config, rank),
    )


def torchtune_model(component: str) -> str | None:
    """Return the name of the model that a builder of torchtune makes: `torchtune.models.llama3_1.llama3_1_8b`."""
    name = BUILDER.sub("", component.rsplit(".", 1)[-1], count=1).removesuffix("_instruct").removesuffix("_base")
    name = re.sub(r"_([01])_5b$", r"_\1.5b", name)  # qwen2_5_0_5b
    return re.sub(r"(\d)_(\d)(?=_)", r"\1.\2", name).replace("_", "-") or None
