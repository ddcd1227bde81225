"""Parameter counts of small models of every family against those of Hugging Face transformers.

`transformers_counts.json` is made by `count_with_transformers.py`.
"""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import SpecError
from shardwright.spec.read.encoder_decoders import ENCODER_DECODERS
from shardwright.spec.read.families import FAMILIES, REFUSED, SYNONYMS
from shardwright.spec.read.huggingface import model_of_config

DATA = json.loads(Path(__file__).with_name("transformers_counts.json").read_text(encoding="utf-8"))
COUNTS, CAUSAL = DATA["models"], DATA["causal"]
TOWERS = ("vision_config", "vq_config", "audio_config")  # transformers counts more than the text model
DEFAULTS = [row for row in CAUSAL if "parameters" in row and not any(name in row["config"] for name in TOWERS)]
UNEVEN = "glm4_moe"  # by default its 96 heads do not divide its hidden size of 4096, and it has no head_dim


def label(row: dict[str, Any]) -> str:
    return str(row["given"]["model_type"])


@pytest.mark.parametrize("row", COUNTS, ids=label)
def test_a_short_config_has_as_many_parameters_as_in_transformers(row: dict[str, Any]) -> None:
    assert model_of_config(row["given"], "config.json").parameters == row["parameters"]


@pytest.mark.parametrize("row", COUNTS, ids=label)
def test_the_config_that_transformers_writes_is_the_same_model(row: dict[str, Any]) -> None:
    model = model_of_config(row["config"], "config.json")
    assert model.parameters == row["parameters"]
    assert model.assumed == ()
    rotated = "rope" if row["given"].get("use_mem_rope") else None
    given = row["given"].get("position_embedding_type", "alibi" if row["given"].get("alibi") else rotated)
    assert model.position == (given or FAMILIES[model.family].position)


def test_every_family_but_three_is_compared() -> None:
    absent, seeing = (
        {"chatglm", "internlm2", "rwkv7"},
        {"glm4v_moe_text", "mllama_text_model", "phi4_multimodal"},
    )  # not in transformers; with its tower
    assert set(FAMILIES) - {label(row) for row in COUNTS} == absent | seeing


@pytest.mark.parametrize("row", DEFAULTS, ids=itemgetter("model_type"))
def test_the_default_config_of_a_family_has_as_many_parameters_as_in_transformers(row: dict[str, Any]) -> None:
    shape = {"head_dim": 4096 // 96} if row["model_type"] == UNEVEN else {}
    assert model_of_config({**row["config"], **shape}, "config.json").parameters == pytest.approx(
        row["parameters"], rel=1e-3
    )


def test_every_causal_model_of_transformers_is_read_or_refused_by_name() -> None:
    names = {row["model_type"] for row in CAUSAL}
    read = {name for name in names if SYNONYMS.get(name, name) in FAMILIES} | set(ENCODER_DECODERS)
    assert names - read - set(REFUSED) == set()
    assert not set(FAMILIES) & set(REFUSED)
    assert len(read) >= 70


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_family_is_refused_with_its_reason(name: str) -> None:
    llama = next(row for row in COUNTS if label(row) == "llama")["given"]
    with pytest.raises(SpecError) as caught:
        model_of_config({**llama, "model_type": name}, "config.json", accept_guess=True)
    assert name in str(caught.value)
    assert REFUSED[name] in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "field", "value"),
    [
        ("gpt2", "dropout", True),
        ("gpt_neox", "dropout", False),
        ("gpt_neox", "parallel_block", True),
        ("gpt_neox", "rotary_fraction", 0.25),
        ("falcon", "parallel_block", True),
        ("glm", "rotary_fraction", 0.5),
        ("glm", "rotary_interleaved", True),
        ("nemotron", "norm_about_one", True),
        ("glm4_moe", "rotary_interleaved", None),
        ("llama", "rotary_interleaved", None),
        ("cohere", "norm_vectors", 1),
        ("gpt_oss", "particular", "attention has learned sinks; the gate of the experts is clamped"),
        ("deepseek_v3", "mtp_layers", 1),
        ("deepseek_v3", "rotary_fraction", 1.0),
        ("gemma3_text", "rotary_base", 1e6),
        ("gemma2", "rotary_base", 1e4),
        ("gemma2", "activation", "gelu_pytorch_tanh"),
        ("opt", "learned_positions", 130),
        ("opt", "max_position", 128),
        ("nemotron", "activation", "relu2"),
        ("bloom", "position", "alibi"),
        ("bert", "final_norm", False),
    ],
)
def test_what_exporters_ask_for(model_type: str, field: str, value: object) -> None:
    row = next(row for row in COUNTS if label(row) == model_type)
    assert getattr(model_of_config(row["config"], "config.json"), field) == value


def test_windows_as_transformers_lists_them() -> None:
    for row in COUNTS:
        types = row["config"].get("layer_types")
        if types:
            layers = model_of_config(row["given"], "config.json").layers
            assert [layer.window is not None for layer in layers] == [
                kind in ("sliding_attention", "chunked_attention") for kind in types
            ], label(row)


def test_blocks_as_transformers_lists_them() -> None:
    """A block with a mixer is one that transformers calls linear_attention, conv or hybrid."""
    mixed = 0
    for row in COUNTS:
        types = row["config"].get("layer_types") or row["config"].get("layers_block_type")
        if types and FAMILIES[row["config"]["model_type"]].mixer:
            layers = model_of_config(row["given"], "config.json").layers
            assert [layer.mixer is not None for layer in layers] == [
                kind in ("linear_attention", "conv", "hybrid") for kind in types
            ], label(row)
            mixed += 1
    assert mixed >= 12


@pytest.mark.parametrize(
    ("config", "place", "words"),
    [
        ({"hybrid_override_pattern": "M-X*"}, "hybrid_override_pattern", "'X' is no known kind of block"),
        ({"hybrid_override_pattern": ""}, "layers_block_type", "is missing"),
        ({"layers_block_type": ["linear_attention", "attentive"]}, "layers_block_type", "is no known kind of layer"),
        ({"layers_block_type": ["hybrid"]}, "layers_block_type", "is no known kind of layer"),
        ({"hybrid_override_pattern": "ME", "n_routed_experts": None}, "num_local_experts", "is missing"),
        ({"hybrid_override_pattern": "M-", "intermediate_size": None}, "intermediate_size", "is missing"),
        ({"hybrid_override_pattern": "M-", "num_hidden_layers": 3}, "hybrid_override_pattern", "lists 2 layers"),
        ({"hybrid_override_pattern": "M", "n_groups": 3}, "n_groups", "does not divide 8 heads"),
        ({"hybrid_override_pattern": "M", "mamba_num_heads": None, "num_heads": None}, "num_heads", "is missing"),
    ],
)
def test_a_pattern_that_says_no_block_is_refused(config: dict[str, object], place: str, words: str) -> None:
    given = next(row["given"] for row in COUNTS if label(row) == "nemotron_h")
    plain = {key: value for key, value in given.items() if key != "hybrid_override_pattern"}
    with pytest.raises(SpecError) as caught:
        model_of_config(plain | config, "config.json")
    assert f"config.json: {place}: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("config", "mixers"),
    [
        ({"model_type": "minimax", "attn_type_list": [0, 1, 0, 0, 1, 0]}, [1, 0, 1, 1, 0, 1]),
        ({"model_type": "lfm2", "full_attn_idxs": [1, 4]}, [1, 0, 1, 1, 0, 1]),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 3}, [1, 0] * 3),
        ({"model_type": "qwen3_next", "full_attention_interval": 3}, [1, 1, 0] * 2),
        ({"model_type": "kimi_linear", "layer_types": None,
          "linear_attn_config": {"full_attn_layers": [2, 6], "num_heads": 4, "head_dim": 12}}, [1, 0, 1, 1, 1, 0]),
    ],
)  # fmt: skip
def test_patterns_of_published_configs(config: dict[str, object], mixers: list[int]) -> None:
    """What configs on Hugging Face write where transformers itself writes `layer_types`."""
    given = next(row["given"] for row in COUNTS if label(row) == config["model_type"])
    plain = {key: value for key, value in given.items() if key != "layer_types"}
    layers = model_of_config(plain | config, "config.json").layers
    assert [int(layer.mixer is not None) for layer in layers] == mixers


def test_predicted_tokens_beside_a_block_of_one_part_are_refused() -> None:
    config = next(row["config"] for row in COUNTS if row["given"]["model_type"] == "nemotron_h")
    with pytest.raises(SpecError, match="which blocks predict tokens beside the last one is not known"):
        model_of_config(config | {"num_nextn_predict_layers": 1}, "config.json")
