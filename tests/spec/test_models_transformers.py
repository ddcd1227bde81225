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
    assert model.position == FAMILIES[model.family].position or row["given"].get("alibi")


def test_every_family_but_one_is_compared() -> None:
    assert set(FAMILIES) - {label(row) for row in COUNTS} == {"chatglm"}  # not in transformers


@pytest.mark.parametrize("row", DEFAULTS, ids=itemgetter("model_type"))
def test_the_default_config_of_a_family_has_as_many_parameters_as_in_transformers(row: dict[str, Any]) -> None:
    shape = {"head_dim": 4096 // 96} if row["model_type"] == UNEVEN else {}
    assert model_of_config({**row["config"], **shape}, "config.json").parameters == pytest.approx(
        row["parameters"], rel=1e-3
    )


def test_every_causal_model_of_transformers_is_read_or_refused_by_name() -> None:
    names = {row["model_type"] for row in CAUSAL}
    read = {name for name in names if SYNONYMS.get(name, name) in FAMILIES}
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
            assert [layer.attention.window is not None for layer in layers] == [
                kind != "full_attention" for kind in types
            ], label(row)
