"""Adapters that are read have the weights that PEFT gives them, or are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardwright.errors import SpecError
from shardwright.importers.adapters import adapter_of, merged
from shardwright.importers.fields import Peft
from shardwright.spec.adapter import adapter_parameters
from shardwright.spec.read.huggingface import model_of_config
from tests.importers.count_with_peft import OUT, RANK

ROWS: list[dict[str, Any]] = json.loads(OUT.read_text(encoding="utf-8"))
READ = {  # of each family, how many ways to name matrices are read
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "stablelm"), 7),
    **dict.fromkeys(("olmo2", "smollm3"), 6),
    "phi3": 1,
    "glm4": 1,
    "qwen3_moe": 3,
    "olmoe": 3,
    "mixtral": 5,
    "qwen2_moe": 3,
    "deepseek_v3": 1,
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["config"]["model_type"])
def test_adapters_have_the_weights_that_peft_gives_them(row: dict[str, Any]) -> None:
    model, read = model_of_config(row["config"], "config", title="small"), 0
    for modules, weights in row["weights"]:
        names = tuple(modules) if isinstance(modules, list) else modules
        peft = Peft(rank=RANK, alpha=None, dora=False, frozen="16-bit", modules=names, place="lora_target_modules")
        try:
            adapter = adapter_of(peft, model, "file")
        except SpecError as error:
            assert all(problem.hint for problem in error.problems)
            continue
        read += 1
        assert weights is not None, modules
        same = adapter_parameters(model, adapter) == weights
        assert same or merged(model, adapter), (modules, adapter)
    assert read == READ[row["config"]["model_type"]]
