"""Reading of models: families, fall-backs, and what is wrong with a config."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

from shardwright import Model, SpecError, load_model
from shardwright.spec.forward_pass import RotaryScaling
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.model_yaml import model_of_dimensions

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 172, "vocab_size": 1000, "max_position_embeddings": 128,
}  # fmt: skip
DIMENSIONS: dict[str, Any] = {"hidden": 64, "layers": 4, "heads": 8, "kv_heads": 2, "ffn": 172, "vocab": 1000}


def problems(config: object) -> str:
    with pytest.raises(SpecError) as caught:
        model_of_config(config, "config.json")
    return str(caught.value)


def test_a_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    model = load_model(folder)
    assert model == load_model(folder / "config.json")
    assert model.name == "tiny"
    assert model.layers[0].self_attention.kv_heads == 2


def test_yaml_and_config_agree() -> None:
    yaml = model_of_dimensions(DIMENSIONS, "tiny")
    config = model_of_config(LLAMA, "tiny")
    assert replace(yaml, family="llama", max_position=128) == config
    assert yaml.parameters == config.parameters


def test_an_unknown_family_is_no_guess_of_ours() -> None:
    text = problems({**LLAMA, "model_type": "brandnew"})
    assert "'brandnew' is not known" in text
    assert "accept_guess=True" in text


def test_an_accepted_guess_is_kept_apart_from_what_is_assumed() -> None:
    config = {**LLAMA, "model_type": "brandnew", "num_local_experts": 4}
    model = model_of_config(config, "config.json", accept_guess=True)
    assert "brandnew" in model.guesses[0]
    assert "2 experts for each token" in model.assumed


@pytest.mark.parametrize("activation", ["relu", "relu2", "xielu"])
def test_a_rectifier_has_no_gate(activation: str) -> None:
    config = {**LLAMA, "model_type": "brandnew", "hidden_act": activation, "rms_norm_eps": 1e-6}
    layer = model_of_config(config, "config.json", accept_guess=True).layers[0]
    assert layer.mlp is not None
    assert not layer.mlp.gated


def test_an_unknown_kind_of_layer_is_no_guess_of_ours() -> None:
    kinds = ["full_attention", "linear_attention"] * 2
    assert "linear_attention" in problems({**LLAMA, "layer_types": kinds})
    assert model_of_config({**LLAMA, "layer_types": kinds}, "config.json", accept_guess=True).guesses


def model_beside(folder: Path, config: dict[str, Any], *, factor: float) -> Model:
    """Return the model of a folder whose index has `factor` times the bytes of `config` in bf16."""
    size = int(2 * factor * model_of_config(LLAMA, "config.json").parameters)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}}))
    return load_model(folder)


@pytest.mark.parametrize("factor", [0.985, 1.0, 1.015])
def test_weights_that_agree(tmp_path: Path, factor: float) -> None:
    assert model_beside(tmp_path, {**LLAMA, "dtype": "bfloat16"}, factor=factor).assumed == ()


@pytest.mark.parametrize("factor", [0.5, 0.97, 1.03])
def test_weights_that_disagree(tmp_path: Path, factor: float) -> None:
    with pytest.raises(SpecError, match=r"index\.json.*has .* parameters"):
        model_beside(tmp_path, {**LLAMA, "torch_dtype": "bfloat16"}, factor=factor)


@pytest.mark.parametrize("more", [{}, {"dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}])
def test_weights_that_cannot_be_compared(tmp_path: Path, more: dict[str, Any]) -> None:
    assert "is not compared" in model_beside(tmp_path, {**LLAMA, **more}, factor=0.5).assumed[-1]


def test_text_model_of_a_multimodal_one() -> None:
    model = model_of_config({"model_type": "llava", "text_config": LLAMA}, "config.json")
    assert model.layers == model_of_config(LLAMA, "config.json").layers
    assert any("multimodal" in words for words in model.assumed)


@pytest.mark.parametrize("spelling", ["num_local_experts", "num_experts", "n_routed_experts"])
def test_experts_under_every_spelling(spelling: str) -> None:
    model = model_of_config({**LLAMA, spelling: 8, "num_experts_per_tok": 2}, "config.json")
    assert model.layers[0].moe is not None
    assert model.layers[0].moe.experts == 8
    assert model.layers[0].mlp is None


def test_dense_layers_before_experts() -> None:
    moe = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
    model = model_of_config({**LLAMA, **moe}, "config.json")
    assert model.kind_of_layer == (0, 1, 1, 1)
    assert model.layers[0].mlp is not None


def test_gemma_alternates_windows() -> None:
    config = {**LLAMA, "model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 16}
    windows = [layer.self_attention.window for layer in model_of_config(config, "config.json").layers]
    assert windows == ([16] * 5 + [None]) * 2


def test_new_and_old_spelling_of_the_rotary_base() -> None:
    old = model_of_config({**LLAMA, "rope_theta": 5e5}, "config.json")
    new = model_of_config({**LLAMA, "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3"}}, "config.json")
    assert old.rotary_base == new.rotary_base == 5e5


def test_details_of_training_are_kept() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 4096, "rope_theta": 5e5}
    config = {**LLAMA, "rms_norm_eps": 1e-6, "rope_parameters": scaling}
    model = model_of_config(config, "config.json")
    assert model.norm_epsilon == 1e-6
    assert model.rotary_scaling == RotaryScaling(kind="llama3", factor=8.0, original_positions=4096)
    old = model_of_config({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2}}, "config.json")
    assert old.rotary_scaling == RotaryScaling(kind="linear", factor=2.0)
    assert model_of_config(LLAMA, "config.json").rotary_scaling is None


def test_the_router_is_kept() -> None:
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    router = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": False}
    moe = model_of_config({**LLAMA, **experts, **router}, "config.json").layers[0].moe
    assert moe is not None
    assert (moe.router_groups, moe.router_top_groups, moe.router_scaling, moe.pre_softmax) == (4, 2, 2.5, True)
    plain = model_of_config({**LLAMA, **experts}, "config.json").layers[0].moe
    assert plain == replace(moe, router_groups=None, router_top_groups=None, router_scaling=None, pre_softmax=None)


@pytest.mark.parametrize(
    ("said", "groups"), [({}, 4), ({"use_grouped_topk": True}, 4), ({"use_grouped_topk": False}, None)]
)
def test_groups_of_experts_count_where_the_router_has_them(said: dict[str, bool], groups: int | None) -> None:
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    model = model_of_config({**LLAMA, **experts, "n_group": 4, "topk_group": 2, **said}, "config.json")
    assert model.layers[0].moe is not None and model.layers[0].moe.router_groups == groups
    assert not [words for words in model.computed.unknown if "use_grouped_topk" in words]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"vocab_size": 10**30}, "vocab_size"),
        ({"num_hidden_layers": 3.5}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "num_attention_heads"),
        ({"num_local_experts": 4, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"kv_lora_rank": 16}, "qk_nope_head_dim"),
        ({"model_type": 3}, "model_type"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"layer_types": 3, "sliding_window": 8}, "layer_types"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], field: str) -> None:
    assert field in problems({**LLAMA, **change})


def test_all_problems_at_once() -> None:
    text = problems({**LLAMA, "hidden_size": 0, "vocab_size": -1})
    assert "hidden_size" in text
    assert "vocab_size" in text


@pytest.mark.parametrize("config", [None, [], "x", 3])
def test_not_a_mapping(config: object) -> None:
    assert "config.json" in problems(config)


def test_unknown_preset_suggests_near_names() -> None:
    with pytest.raises(SpecError, match="llama-2-70b"):
        load_model("lama-2-70b")


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"config\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "word"),
    [({"hiden": 3}, "hidden"), ({"norm": "batch"}, "norm"), ({"moe": 3}, "moe"), ({"ffn": None}, "ffn"),
     ({"position": "learned"}, "max_position"), ({"moe": {"experts": 2, "top_k": 4, "expert_width": 8}}, "top_k")],
)  # fmt: skip
def test_wrong_dimensions_are_named(change: dict[str, Any], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        model_of_dimensions({**DIMENSIONS, **change}, "model.yaml")


def test_yaml_of_experts_every_other_layer() -> None:
    moe = {"experts": 4, "top_k": 2, "expert_width": 32, "every": 2}
    model = model_of_dimensions({**DIMENSIONS, "moe": moe}, "model.yaml")
    assert [layer.moe is not None for layer in model.layers] == [False, True, False, True]


odd = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)  # fmt: skip
keys = st.sampled_from(
    [*LLAMA, "head_dim", "num_experts", "sliding_window", "kv_lora_rank", "text_config", "layer_types"]
)


@settings(max_examples=examples(300))
@given(st.dictionaries(keys, odd, max_size=4))
def test_any_config_is_a_model_or_a_clear_error(change: dict[str, Any]) -> None:
    try:
        model = model_of_config({**LLAMA, **change}, "config.json")
    except SpecError as error:
        assert error.problems
        assert all(problem.message for problem in error.problems)
    else:
        assert model.parameters > 0


@settings(max_examples=examples(200))
@given(st.dictionaries(st.sampled_from([*DIMENSIONS, "moe", "norm", "gated", "x"]), odd, max_size=4))
def test_any_yaml_is_a_model_or_a_clear_error(change: dict[str, Any]) -> None:
    try:
        assert model_of_dimensions({**DIMENSIONS, **change}, "model.yaml").parameters > 0
    except SpecError as error:
        assert error.problems
