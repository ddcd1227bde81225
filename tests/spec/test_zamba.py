"""Zamba and Zamba2: which layers share which block, what is counted once, and configs that are none of theirs.

Counts against transformers are those of `test_models_transformers` and `test_models_presets`.
"""

from __future__ import annotations

from typing import Any

import pytest

from shardwright import SpecError, load_model
from shardwright.spec.adapter import held_matrices, matrices
from shardwright.spec.read.huggingface import model_of_config

ZAMBA2: dict[str, Any] = {
    "model_type": "zamba2", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 8, "n_mamba_heads": 8, "num_mem_blocks": 2,
    "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid", "mamba", "hybrid"],
}  # fmt: skip
ZAMBA = ZAMBA2 | {"model_type": "zamba", "n_mamba_heads": 2}


def test_layers_take_turns_over_the_blocks() -> None:
    model = model_of_config(ZAMBA2, "config.json")
    assert model.sharing == (0, 2, 3, 5)
    assert [model.block_of(layer) for layer in model.sharing] == [0, 1, 0, 1]
    assert [kind.norms for kind in model.layers] == [4, 1, 4, 4, 1, 4]
    assert model.layers[1].attention is None and model.layers[1].mlp is None
    assert model_of_config(ZAMBA, "config.json").shared_blocks == 1


@pytest.mark.parametrize("name", ["zamba-7b-v1", "zamba2-1.2b", "zamba2-7b"])
def test_what_is_shared_is_counted_once_a_block(name: str) -> None:
    """Of weights, and of their matrices; a layer has those that it uses."""
    model = load_model(name)
    layers = sum(model.layer_parameters(layer) for layer in model.layers)
    assert model.parameters == layers + model.embedding_parameters + model.head_parameters
    assert model.shared_parameters == model.embedding_parameters - model.token_table_parameters
    held = sum(times * matrix.inputs * matrix.outputs * matrix.copies for matrix, times in held_matrices(model))
    used = sum(matrix.inputs * matrix.outputs for layer in model.layers for matrix in matrices(model, layer))
    ends = model.token_table_parameters + model.head_parameters
    assert 0.98 * (model.parameters - ends) < held < model.parameters - ends
    more = len(model.sharing) - (model.shared_blocks or 0)
    assert used - held == pytest.approx(more * model.shared_parameters / (model.shared_blocks or 1), rel=1e-3)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (ZAMBA2 | {"tie_word_embeddings": False}, "tie_word_embeddings"),
        (ZAMBA2 | {"layers_block_type": ["hybrid", "attention", *["mamba"] * 4]}, "layers_block_type"),
        (ZAMBA2 | {"layers_block_type": ["hybrid", "mamba"]}, "layers_block_type"),
        (ZAMBA2 | {"num_attention_heads": 6, "num_key_value_heads": 6}, "num_attention_heads"),
        (ZAMBA2 | {"use_shared_attention_adapter": True, "num_key_value_heads": 4}, "use_shared_attention_adapter"),
        (ZAMBA2 | {"mamba_ngroups": 3}, "mamba_ngroups"),
        (ZAMBA2 | {"n_mamba_heads": 6}, "n_mamba_heads"),
        (ZAMBA | {"attention_hidden_size": 64}, "attention_hidden_size"),
        (ZAMBA | {"n_mamba_heads": 3}, "n_mamba_heads"),
        (ZAMBA | {"tie_word_embeddings": False}, "tie_word_embeddings"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_that_is_none_of_theirs_is_refused_by_its_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        model_of_config(config, "config.json")
    assert any(problem.path.endswith(field) for problem in caught.value.problems)


def test_layers_alone_share_no_block() -> None:
    model = model_of_config(ZAMBA2 | {"layers_block_type": ["mamba"] * 6}, "config.json")
    assert model.shared_blocks is None and model.shared_parameters == 0
