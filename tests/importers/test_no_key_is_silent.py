"""A key of adapters, quantisation, kernels or offload that is given another value changes the plan, is named or refuses
the run: it never passes in silence, but where its row says why it changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwright.errors import SpecError
from shardwright.importers.launch import plan_from_launch
from shardwright.importers.megatron.read import Reading
from shardwright.importers.settings import key_of
from shardwright.spec.read.cluster import load_cluster
from tests.importers.test_keys import CHAINS, schema

PARTS = ("lora", "peft", "dora", "adapter", "quant", "bnb", "load_in", "liger", "cross_entropy", "offload", "dtype",
         "bf16", "bfloat16", "checkpointing")  # fmt: skip
VALUES = (True, False, 3, "other", ["q_proj", "o_proj"])
BESIDE = {  # keys that go with another, which these files have not
    "lora_target_modules": "lora_target_linear, which names all",
    "liger_kernel_config": "a mapping",
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
}


def read(trainer: str, folder: Path, changes: dict[str, Any]) -> Reading:
    line, fields = BASES[trainer]
    (folder / "file.yaml").write_text(yaml.safe_dump(fields | changes))
    (folder / "run.sh").write_text(f"{line}\n")
    return plan_from_launch(folder / "run.sh", cluster=load_cluster("1x2xH100-SXM"))


@pytest.mark.parametrize("trainer", BASES)
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
