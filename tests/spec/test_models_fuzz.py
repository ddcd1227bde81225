"""Whatever a user hands over as a model is a model or a `SpecError`; and a model is the sum of its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

from shardwright import SpecError, load_model
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.model_yaml import KEYS, MLA_KEYS, MOE_KEYS, model_of_dimensions
from shardwright.spec.read.presets import _presets

CONFIGS: dict[str, dict[str, Any]] = {
    name: entry["config"] for name, entry in _presets().items() if "config" in entry
}  # fmt: skip
FIELDS = [
    *sorted({key for config in CONFIGS.values() for key in config}),
    "text_config", "llm_config", "architectures", "rope_parameters", "layer_types", "use_sliding_window", "num_experts",
    "moe_layer_freq", "mlp_only_layers", "kv_lora_rank", "rope_ratio", "qk_norm", "attention_chunk_size", "alibi",
    "is_encoder_decoder", "use_bias", "topk_method", "attention_bias",
]  # fmt: skip
NESTED = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 9), st.sampled_from([2**40, -(2**70), 10**299]), st.floats(),
        st.text(max_size=6), st.sampled_from([*FIELDS[:20], "full_attention", "sliding_attention", "noaux_tc"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*FIELDS, "full_attention"]), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=examples(600))
@given(st.sampled_from(sorted(CONFIGS)), st.dictionaries(st.sampled_from(FIELDS), NESTED, max_size=4), st.data())
def test_any_changed_preset_is_a_model_or_a_clear_error(name: str, change: dict[str, Any], data: st.DataObject) -> None:
    config = {**CONFIGS[name], **change}
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=2)):
        config.pop(key, None)
    try:
        model = model_of_config(config, "config.json")
    except SpecError as error:
        assert all(problem.path.startswith("config.json") and problem.message for problem in error.problems)
        assert all(problem.hint for problem in error.problems)
    else:
        assert 0 < model.active_parameters <= model.parameters
        assert len(model.layers) >= 1
        assert all(layer.sublayers and not (layer.mlp and layer.moe) for layer in model.layers)


@settings(max_examples=examples(300))
@given(st.dictionaries(st.sampled_from([*KEYS, *MOE_KEYS, *MLA_KEYS]), NESTED, max_size=5))
def test_any_dimensions_are_a_model_or_a_clear_error(change: dict[str, Any]) -> None:
    base = {"hidden": 64, "layers": 4, "heads": 8, "ffn": 172, "vocab": 1000}
    try:
        assert model_of_dimensions({**base, **change}, "model.yaml").parameters > 0
    except SpecError as error:
        assert all(problem.path.startswith("model.yaml") and problem.message for problem in error.problems)


@settings(max_examples=examples(100))
@given(content=st.binary(max_size=200), ending=st.sampled_from([".json", ".yaml", ".txt", ""]))
def test_any_file_is_a_model_or_a_clear_error(
    content: bytes, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / f"model{ending}"
    path.write_bytes(content)
    with pytest.raises(SpecError, match="model"):
        load_model(path)


def test_a_config_cut_off_anywhere(tmp_path: Path) -> None:
    whole = json.dumps(CONFIGS["llama-2-7b"])
    path = tmp_path / "config.json"
    for length in range(len(whole)):
        path.write_text(whole[:length])
        with pytest.raises(SpecError, match=r"config\.json"):
            load_model(path)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000_000,
        "[" * 100_000,
        '{"a": ' * 5_000 + "1" + "}" * 5_000,
        '{"model_type": "llama", "hidden_size": ' + "9" * 6_000 + "}",
        '{"model_type": "llama", "hidden_size": NaN}',
        '{"hidden_size": 64, "hidden_size": 64}',
        "[]",
        "null",
        "3",
        '"llama-2-7b"',
    ],
    ids=["noise", "open", "deep", "huge number", "nan", "twice", "list", "null", "number", "text"],
)
def test_hostile_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"config\.json"):
        load_model(path)


@pytest.mark.parametrize("source", ["", " ", "\0", "x" * 10_000, "no/such.json", "no-such-model", "/", "x.yml", "a\nb"])
def test_sources_that_are_nothing(source: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_model(source)
    assert all(problem.hint for problem in caught.value.problems)


def test_content_says_what_a_file_is(tmp_path: Path) -> None:
    config, dimensions = tmp_path / "a.yaml", tmp_path / "b.json"
    config.write_text("{model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 4, n_positions: 32, vocab_size: 100}")
    dimensions.write_text('{"hidden": 64, "layers": 2, "heads": 4, "ffn": 128, "vocab": 100}')
    assert load_model(config).family == "gpt2"
    model = load_model(dimensions)
    assert (model.family, model.name, len(model.layers)) == ("yaml", "b", 2)


SMALL = st.integers(1, 40)


def weights(d: dict[str, Any]) -> int:
    """Return the sum of the elements of every weight, listed by its shape, of a model of dimensions."""
    hidden, heads, kv, dim = d["hidden"], d["heads"], d["kv_heads"], d["head_dim"]
    norm = [(hidden,)] * (2 if d["norm"] == "layernorm" else 1)
    shapes: list[tuple[int, ...]] = [(d["vocab"], hidden), *norm]
    shapes += [] if d["tied_embeddings"] else [(hidden, d["vocab"])]
    shapes += [(d["max_position"], hidden)] if d["position"] == "learned" else []
    for layer in range(d["layers"]):
        shapes += norm * 2
        shapes += [(hidden, heads, dim), (hidden, kv, dim), (hidden, kv, dim), (heads, dim, hidden)]
        shapes += [(heads, dim), (kv, dim), (kv, dim)] if d["bias"] != "none" else []
        shapes += [(hidden,)] if d["bias"] == "all" else []
        shapes += [(dim,), (dim,)] if d["qk_norm"] else []
        matrices = 3 if d["gated"] else 2
        moe = d.get("moe")
        if moe and layer >= moe["first_dense"] and (layer + 1) % moe["every"] == 0:
            shapes += [(hidden, moe["experts"])] + [(hidden, moe["expert_width"])] * matrices * moe["experts"]
            shapes += [(hidden, moe["shared_width"])] * matrices
        else:
            shapes += [(hidden, d["ffn"])] * matrices
            shapes += [(d["ffn"],)] * (matrices - 1) + [(hidden,)] if d["bias"] == "all" else []
    total = 0
    for shape in shapes:
        size = 1
        for length in shape:
            size *= length
        total += size
    return total


@st.composite
def dimensions(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads = draw(st.integers(1, 4))
    experts = draw(st.integers(1, 5))
    moe = {
        "experts": experts, "top_k": draw(st.integers(1, experts)), "expert_width": draw(SMALL),
        "shared_width": draw(st.integers(0, 9)), "first_dense": draw(st.integers(0, 3)),
        "every": draw(st.integers(1, 3)),
    }  # fmt: skip
    flag = st.booleans()
    return {
        "hidden": draw(SMALL), "layers": draw(st.integers(1, 6)), "kv_heads": kv_heads, "ffn": draw(SMALL),
        "heads": kv_heads * draw(st.integers(1, 4)), "head_dim": draw(SMALL), "vocab": draw(SMALL),
        "gated": draw(flag), "norm": draw(st.sampled_from(["rmsnorm", "layernorm"])), "qk_norm": draw(flag),
        "position": draw(st.sampled_from(["rope", "learned", "alibi", "none"])), "max_position": draw(SMALL),
        "bias": draw(st.sampled_from(["none", "qkv", "all"])), "tied_embeddings": draw(flag),
        **({"moe": moe} if draw(flag) else {}),
    }  # fmt: skip


@settings(max_examples=examples(200))
@given(dimensions())
def test_a_model_is_the_sum_of_its_weights(given_dimensions: dict[str, Any]) -> None:
    model = model_of_dimensions(given_dimensions, "model.yaml")
    assert model.parameters == weights(given_dimensions)
    parts = [model.layer_parameters(layer) for layer in model.layers]
    assert model.parameters == model.embedding_parameters + sum(parts) + model.head_parameters
