"""Configurations of torchtune's full fine-tuning, as Megatron-LM's arguments."""

from __future__ import annotations

import re

from shardwright.importers.trainers import (
    FULL,
    TrainerFields,
    TrainerSettings,
    batch_words,
    optimizer_words,
    sharding_words,
)

FULL_RECIPES = ("full_finetune_distributed", "full_finetune_single_device")


def torchtune_settings(config: TrainerFields, gpus: int) -> TrainerSettings:
    """Return a configuration of `full_finetune_distributed`, or of one device where one GPU runs."""
    component = str(config.first("model") or "")
    if "lora" in component:
        hint = "leave LoRA out (`shardwright fit` sizes it)"
        config.report("model._component_", f"{component} trains adapters, which a plan does not describe", hint)
    tensor = config.whole("tensor_parallel_dim", 1)
    micro, steps = config.whole("batch_size", 1), config.whole("gradient_accumulation_steps", 1)
    stage = 0 if gpus == 1 else 2 if config.first("fsdp_reshard_after_forward") is False else 3
    words = [*sharding_words(stage), *batch_words(micro, micro * steps * max(gpus // tensor, 1))]
    words += ["--tensor-model-parallel-size", str(tensor)]
    words += FULL if config.first("enable_activation_checkpointing") is True else ()
    if length := config.first("max_seq_len"):
        words += ["--seq-length", str(length)]
    optimizer, uncounted = optimizer_words(config, "optimizer")
    return TrainerSettings((*words, *optimizer), uncounted, "fsdp", model_told(component))


def model_told(component: str) -> str | None:
    """Return the name of the model that a builder of torchtune makes: `torchtune.models.llama3_1.llama3_1_8b`."""
    name = component.rsplit(".", 1)[-1].removesuffix("_instruct").removesuffix("_base")
    name = re.sub(r"_([01])_5b$", r"_\1.5b", name)  # qwen2_5_0_5b
    return re.sub(r"(\d)_(\d)(?=_)", r"\1.\2", name).replace("_", "-") or None
