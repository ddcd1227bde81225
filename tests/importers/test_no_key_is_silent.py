"""No value of a key makes a traceback, and a key of adapters, quantisation, kernels or offload that is given another value changes the plan, is named or refuses
the run: it never passes in silence, but where its row says why it changes nothing."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from shardwright import SpecError, load_cluster
from shardwright.importers.launch import plan_from_launch
from shardwright.importers.megatron.read import Reading
from shardwright.importers.settings import key_of, known_keys
from tests.importers.test_keys import CHAINS, schema
from tests.nightly import nightly

PARTS = ("lora", "peft", "dora", "adapter", "quant", "bnb", "load_in", "liger", "cross_entropy", "offload", "dtype",
         "bf16", "bfloat16", "checkpointing")  # fmt: skip
VALUES = (True, False, 3, "other", ["q_proj", "o_proj"])
BESIDE = {  # keys that go with another, which these files have not
    "lora_target_modules": "lora_target_linear, which names all",
    "liger_kernel_config": "a mapping",
    "ref_model_adapters": "a loss over preferences",
    "ref_model_quantization_bit": "a loss over preferences",
}
TRAINER: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "bf16": True,
    "lora_alpha": 8,
    "model_name_or_path": "Qwen/Qwen3-8B",
}
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "axolotl": (
        "axolotl train file.yaml",
        {
            "base_model": "Qwen/Qwen3-8B",
            "adapter": "qlora",
            "load_in_4bit": True,
            "lora_r": 8,
            "lora_alpha": 8,
            "lora_target_linear": True,
            "gradient_checkpointing": True,
            "micro_batch_size": 1,
        },
    ),
    "trl": (
        "accelerate launch --num_processes 2 --multi_gpu -m trl.scripts.sft --config file.yaml",
        {
            **TRAINER,
            "dtype": "bfloat16",
            "use_peft": True,
            "load_in_4bit": True,
            "fsdp": "full_shard",
            "lora_target_modules": "all-linear",
            "bnb_4bit_quant_storage": "bfloat16",
            "use_bnb_nested_quant": True,
        },
    ),
    "llamafactory": ("llamafactory-cli train file.yaml", {**TRAINER, "quantization_bit": 4}),
    "deepspeed": (
        "llamafactory-cli train file.yaml",
        {**TRAINER, "finetuning_type": "full", "deepspeed": {"zero_optimization": {"stage": 3}}},
    ),
    "torchtune": (
        "tune run --nproc_per_node 2 lora_finetune_distributed --config file.yaml",
        {
            "model": {
                "_component_": "torchtune.models.llama3_1.lora_llama3_1_8b",
                "lora_attn_modules": ["q_proj", "v_proj"],
            },
            "tokenizer": {"max_seq_len": 1024},
            "optimizer": {"_component_": "torch.optim.AdamW"},
            "batch_size": 1,
        },
    ),
    "foundry": (
        "composer train.py file.yaml",
        {
            "model": {"name": "mpt_causal_lm", "attn_config": {"rope": True}},
            "max_seq_len": 1024,
            "global_train_batch_size": 8,
            "device_train_microbatch_size": 2,
        },
    ),
    "torchtitan": (
        "file.toml",
        {
            "model": {"name": "llama3", "flavor": "8B"},
            "parallelism": {"pipeline_parallel_degree": 2},
            "training": {"local_batch_size": 2},
        },
    ),
}
FINE_TUNINGS = ("axolotl", "trl", "llamafactory")
ODD: tuple[Any, ...] = (True, -1, 2.5, "other", "", [], ["q_proj"], [["a"]], "9" * 40, 10**30)


def read(trainer: str, folder: Path, changes: dict[str, Any]) -> Reading:
    """Read a base with other values: of keys, or of paths in its sections."""
    line, fields = BASES[trainer]
    fields = deepcopy(fields)
    for name, value in changes.items():
        section, (*around, key) = fields, name.split(".")
        for part in around:
            if not isinstance(section.get(part), dict):
                section[part] = {}
            section = section[part]
        section[key] = value
    start = folder / (line if line == "file.toml" else "run.sh")
    (folder / "file.yaml").write_text(yaml.safe_dump(fields))
    start.write_text(_toml(fields) if start.suffix == ".toml" else f"{line}\n")
    return plan_from_launch(start, cluster=load_cluster("1x2xH100-SXM"))


def _toml(sections: dict[str, Any]) -> str:
    lines = ((f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items()))
             for name, keys in sections.items() if isinstance(keys, dict))  # fmt: skip
    return "\n".join(line for part in lines for line in part)


@pytest.mark.parametrize("share", [0.1, *nightly([1.0])])
@pytest.mark.parametrize("trainer", BASES)
def test_no_value_is_a_traceback(trainer: str, share: float, tmp_path: Path) -> None:
    """Of a part of the pairs of keys that are read and odd values."""
    where = "deepspeed." if trainer == "deepspeed" else ""
    keys = [key for key, row in known_keys(trainer).items() if row.effect == "read"]
    pairs = [(f"{where}{key}", value) for key in keys for value in ODD]
    plans = 0
    for key, value in Random(1).sample(pairs, int(share * len(pairs))):
        try:
            plans += read(trainer, tmp_path, {key: value}).plan.gpus
        except SpecError as error:
            assert all(problem.hint for problem in error.problems), (key, value)
    assert plans


@pytest.mark.parametrize("trainer", FINE_TUNINGS)
def test_no_key_of_a_fine_tuning_is_silent(trainer: str, tmp_path: Path) -> None:
    chain, asked = (*CHAINS[trainer], "accelerate"), 0
    base = read(trainer, tmp_path, {})
    keys = {key for name in CHAINS[trainer] for key in schema(name)}
    for key in sorted(keys):
        row = key_of((key,), chain)
        if "." in key or row is None or row.effect == "none" or not any(part in key for part in PARTS):
            continue
        for value in VALUES:
            asked += 1
            try:
                reading = read(trainer, tmp_path, {key: value})
            except SpecError as error:
                assert all(problem.hint for problem in error.problems)
                continue
            screen = " ".join((*reading.uncounted, *reading.notes))
            same = reading.plan == base.plan and screen == " ".join((*base.uncounted, *base.notes))
            beside = trainer != "trl" or key != "lora_target_modules"
            assert not same or row.is_usual(value) or (key in BESIDE and beside), (key, value)
    assert asked > 80
