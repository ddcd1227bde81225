"""What a layer of every family of the shipped models keeps under plain PyTorch, against what is live on fake devices
between the second and the last of a few layers of transformers' own code, with and without running again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.nightly import nightly
from tests.rehearsal.tiny import require_guard
from tests.spec.test_towers import ONE

import shardwright
from shardwright.cost.memory.activations import layer_activation_bytes
from shardwright.files import shipped_file
from shardwright.spec.model import Model
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.job import make_job

TOKENS, NEAR = 2048, 0.03
SCRIPT = Path(__file__).with_name("kept_on_gpu.py")
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
MOST = 12  # layers
KERNELS = "its kernels need CUDA, and PyTorch's formulas in their place keep more; tests/cost/test_mixers.py holds it"
ELSEWHERE = "is an encoder or has one; test_encoder_decoders.py and tests/spec/test_towers.py hold those"
OUTSIDE = {
    "bloom": "transformers has no fused attention for it", "gemma2": "transformers has no fused attention for it",
    "gpt_oss": "transformers has no fused attention for it", "chatglm": "transformers 5 has no class of it",
    "internlm2": "transformers 5 has no class of it", "rwkv7": "transformers 5 has no class of it",
    "llama4_text": "transformers runs every expert on every token",
    "deepseek_v32": "transformers masks scores in place of sparse attention",
    "glm_moe_dsa": "transformers masks scores in place of sparse attention",
    "gemma4_text": "its layers differ; tests/cost/test_text_families.py holds it",
    "mllama_text_model": "its keys are another model's; tests/cost/test_cross_layers.py holds it",
    **dict.fromkeys(("bart", "bert", "mbart", "mt5", "t5", "whisper"), ELSEWHERE),
    **dict.fromkeys(
        ("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "lfm2_moe", "mamba", "mamba2",
         "minimax", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "recurrent_gemma",
         "zamba", "zamba2"),
        KERNELS,
    ),
    "yaml": "is no family of transformers",
}  # fmt: skip
OFTEN = ("phi", "gpt2", "opt", "falcon", "olmo")
ALIKE = ("arcee", "cwm", "exaone4", "granite", "helium", "hunyuan_v1_dense")
SMALL: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8, "head_dim": 128,
    "num_attention_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {  # families that no shipped model is of
    "olmo": {
        "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 2048, "hidden_act": "silu",
    },
    "stablelm": {
        "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.25,
    },
    "cohere": {
        "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
        "num_attention_heads": 64, "num_key_value_heads": 64,
    },
    "minicpm3": {
        "vocab_size": 1000, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": 256, "kv_lora_rank": 128,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
    },
    **dict.fromkeys(ALIKE, SMALL),
}  # fmt: skip


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Return a config of each family, that of its first model."""
    rows = json.loads(shipped_file("shardwright.spec.catalog", "models.json"))
    found: dict[str, dict[str, Any]] = {}
    for name, row in rows.items():
        config = row.get("config", {})
        family = shardwright.load_model(name).family
        if config.get("model_type") == family:
            found.setdefault(family, config)
    return found | {family: {"model_type": family} | fields for family, fields in MORE.items()}


RARELY = tuple(sorted({*presets()} - {*OFTEN, *OUTSIDE}))


def shallow(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config of the fewest layers that has all kinds."""
    kinds = model_of_config(config, "config.json").kind_of_layer
    depth = 3
    while depth < min(len(kinds), MOST) and {*kinds[2:depth]} != {*kinds}:
        depth += 1
    cut = {key: value[:depth] if isinstance(value, list) and len(value) == len(kinds) else value
           for key, value in config.items()}  # fmt: skip
    return cut | {key: depth for key in DEPTHS if key in config} | {"num_nextn_predict_layers": 0}


def ours(model: Model) -> tuple[float, float]:
    """Return what all layers but the first two keep, where nothing runs again and where all do."""
    memory = layer_activation_bytes(model, ONE, make_job(global_batch=1, seq_len=TOKENS, framework="fsdp"))
    first, last = (
        sum(figures[1 + kind][0] for kind in model.kind_of_layer[2:]) for figures in (memory.kept, memory.inputs)
    )
    return float(first), float(last)


def theirs(folder: Path, families: Sequence[str]) -> dict[str, Any]:
    question, answer = folder / "question.json", folder / "answer.json"
    configs = {family: shallow(presets()[family]) for family in families}
    question.write_text(json.dumps({"tokens": TOKENS, "configs": configs}), encoding="utf-8")
    command = [sys.executable, str(SCRIPT), str(question), str(answer)]
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return result


def test_every_family_is_held_or_outside_for_a_reason() -> None:
    known = {
        shardwright.load_model(name).family
        for name in json.loads(shipped_file("shardwright.spec.catalog", "models.json"))
    }
    assert known <= {*presets(), *OUTSIDE}


@pytest.mark.parametrize("families", [OFTEN, *nightly([(RARELY,)])], ids=len)
def test_a_layer_keeps_as_much_as_is_live(families: tuple[str, ...], tmp_path: Path) -> None:
    require_guard()
    pytest.importorskip("transformers")
    live, far = theirs(tmp_path, families), {}
    for family in families:
        if isinstance(live[family], str):
            far[family] = live[family]
            continue
        expected = ours(model_of_config(shallow(presets()[family]), family))
        distances = [account / real - 1.0 for account, real in zip(expected, live[family], strict=True)]
        if max(map(abs, distances)) > NEAR:
            far[family] = " and ".join(f"{distance:+.1%}" for distance in distances)
    assert not far
