"""What layers of Gemma 4, which differ, and of Gemma 3n, which have several residual streams, keep under plain PyTorch,
against the tensors that autograd saves of transformers' classes, and their FLOPs. `test_kept_by_family` has the other
families.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.cost.saved_tensors import counted_flops, saved_bytes
from tests.spec.test_towers import ONE

from shardwright import Model, SpecError, make_job
from shardwright.cost.compute.flops import layer_flops_per_token
from shardwright.cost.compute.operator_table import FORWARD, GEMM, Operator, table
from shardwright.cost.compute.operators import embedding_operators, head_operators, layer_operators
from shardwright.cost.memory.activations import layer_activation_bytes
from shardwright.spec.read.huggingface import model_of_config

TOKENS = 128
JOB = make_job(global_batch=1, seq_len=TOKENS, framework="fsdp")
BASE: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "head_dim": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "sliding_window": 512,
}  # fmt: skip
SLIDING, FULL = "sliding_attention", "full_attention"
WIDE = BASE | {"global_head_dim": 64, "vocab_size_per_layer_input": 200}
REUSING = WIDE | {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
EMBEDDED = WIDE | {"hidden_size_per_layer_input": 32}
BORROWING = EMBEDDED | {"use_double_wide_mlp": True}
GEMMA4: dict[str, tuple[dict[str, Any], list[str], list[str], int]] = {  # fewer layers, more, and how many own keys
    "values are keys": (REUSING, [SLIDING, FULL], [SLIDING, FULL, FULL], 0),
    "embeddings for each layer": (EMBEDDED, [SLIDING, FULL], [SLIDING, SLIDING, FULL], 0),
    "keys of earlier layers": (BORROWING, [SLIDING, FULL, FULL], [SLIDING, FULL, SLIDING, FULL], 2),
}


def built(model_type: str, fields: dict[str, Any], **how: Any) -> Any:
    """Return the model of transformers."""
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[model_type](**fields)
    return transformers.AutoModelForCausalLM.from_config(config, **how).train()


def saved(model_type: str, fields: dict[str, Any]) -> int:
    torch = pytest.importorskip("torch")
    model = built(model_type, fields, dtype=torch.bfloat16, attn_implementation="sdpa")
    ids = torch.full((1, TOKENS), 7)
    return saved_bytes(model, lambda: model(input_ids=ids, use_cache=False).logits.float().sum())


def kept(model_type: str, fields: dict[str, Any]) -> float:
    model = model_of_config({"model_type": model_type, **fields}, "config.json")
    memory = layer_activation_bytes(model, ONE, JOB)
    return float(sum(memory.kept[1 + kind][0] for kind in model.kind_of_layer) + memory.kept[0][0])


def fields_of(name: str, *, more: bool) -> dict[str, Any]:
    fields, few, many, borrowed = GEMMA4[name]
    types = many if more else few
    shared = len(types) - borrowed if borrowed else 0
    return fields | {"num_hidden_layers": len(types), "layer_types": types, "num_kv_shared_layers": shared}


@pytest.mark.parametrize("name", GEMMA4)
def test_a_layer_of_gemma_4_keeps_as_much_as_pytorch_saves(name: str) -> None:
    few, many = (fields_of(name, more=more) for more in (False, True))
    difference = saved("gemma4_text", many) - saved("gemma4_text", few)
    assert kept("gemma4_text", many) - kept("gemma4_text", few) == pytest.approx(difference, rel=0.03)


def forward_flops(model: Model) -> float:
    """Return the FLOPs of a token, where all scores are computed, causal or not."""
    attentions = [replace(layer, attention=replace(layer.self_attention, causal=False)) for layer in model.layers]
    layers = sum(layer_flops_per_token(model, layer, TOKENS) for layer in attentions)
    return layers + 2.0 * model.hidden * (model.vocab + model.embedded_width)


def score_flops(model: Model) -> float:
    """Return the FLOPs of all scores of a token."""
    return sum(4.0 * layer.self_attention.heads * layer.self_attention.head_dim * TOKENS for layer in model.layers)


def flops_of_transformers(model_type: str, fields: dict[str, Any]) -> int:
    torch = pytest.importorskip("torch")
    model = built(model_type, fields, attn_implementation="eager")
    return counted_flops(lambda: model(input_ids=torch.zeros((1, TOKENS), dtype=torch.long), use_cache=False))


def priced_products(model: Model, ends: Sequence[Iterable[Operator]]) -> float:
    """Return the FLOPs of the products of a forward pass whose seconds are priced, of ends and layers."""
    kinds = ((model.kind_of_layer.count(place), kind) for place, kind in enumerate(model.kinds))
    parts = [*((1, end) for end in ends), *((count, layer_operators(model, kind, ONE, JOB)) for count, kind in kinds)]
    tables = ((count, table(list(operators))) for count, operators in parts)
    return sum(
        count * float(rows.flops[(rows.kind == GEMM) & (rows.direction == FORWARD)].sum()) for count, rows in tables
    )


@pytest.mark.parametrize("name", GEMMA4)
def test_gemma_4_has_the_flops_that_pytorch_counts(name: str) -> None:
    fields = fields_of(name, more=True)
    model = model_of_config({"model_type": "gemma4_text", **fields}, "config.json")
    assert TOKENS * forward_flops(model) == pytest.approx(flops_of_transformers("gemma4_text", fields), rel=5e-3)


@pytest.mark.parametrize("name", GEMMA4)
def test_what_is_priced_of_gemma_4_has_the_flops_of_the_model(name: str) -> None:
    model = model_of_config({"model_type": "gemma4_text", **fields_of(name, more=True)}, "config.json")
    products = TOKENS * (forward_flops(model) - score_flops(model) - 2.0 * model.hidden * model.vocab)
    assert priced_products(model, [embedding_operators(model, ONE, JOB)]) == pytest.approx(products)


FEW, MORE = [SLIDING, FULL, FULL], [SLIDING, FULL, SLIDING, FULL]  # two layers have keys of their own


def fields(types: list[str], *, sparse: float, streams: int = 4) -> dict[str, Any]:
    return BASE | {
        "vocab_size_per_layer_input": 200, "hidden_size_per_layer_input": 32, "laurel_rank": 16,
        "altup_num_inputs": streams, "num_hidden_layers": len(types), "layer_types": types,
        "num_kv_shared_layers": len(types) - 2, "activation_sparsity_pattern": [sparse] * len(types),
    }  # fmt: skip


@pytest.mark.parametrize(("sparse", "streams"), [(0.0, 4), (0.95, 2)])
def test_a_layer_keeps_as_much_as_pytorch_saves(sparse: float, streams: int) -> None:
    few, more = (fields(types, sparse=sparse, streams=streams) for types in (FEW, MORE))
    difference = saved("gemma3n_text", more) - saved("gemma3n_text", few)
    assert kept("gemma3n_text", more) - kept("gemma3n_text", few) == pytest.approx(difference, rel=0.03)


def test_streams_at_both_ends_keep_as_much_as_pytorch_saves() -> None:
    """Of which there are one, three or six more."""
    ends = []
    for streams in (2, 4):
        given = fields(FEW, sparse=0.0, streams=streams)
        model = model_of_config({"model_type": "gemma3n_text", **given}, "config.json")
        memory = layer_activation_bytes(model, ONE, JOB)
        everything = kept("gemma3n_text", given) + float(memory.before_logits[0])
        ends.append((everything, saved("gemma3n_text", given)))
    (few, theirs), (more, theirs_more) = ends
    assert more - few == pytest.approx(theirs_more - theirs, rel=0.03)


def test_a_step_has_the_flops_that_pytorch_counts() -> None:
    given = fields(MORE, sparse=0.95)
    model = model_of_config({"model_type": "gemma3n_text", **given}, "config.json")
    expected = TOKENS * (forward_flops(model) + 4.0 * model.stream_parameters)
    assert expected == pytest.approx(flops_of_transformers("gemma3n_text", given), rel=5e-3)
    ends = [embedding_operators(model, ONE, JOB), head_operators(model, ONE, JOB)]
    assert priced_products(model, ends) == pytest.approx(expected - TOKENS * score_flops(model), rel=1e-9)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_kv_shared_layers": 4}, "which leaves none to take keys from"),
        ({"intermediate_size": [256, 0, 256, 256]}, "is no list of 4 widths"),
        ({"activation_sparsity_pattern": [0.95]}, "is no list of 4 shares"),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        model_of_config({"model_type": "gemma3n_text", **fields(MORE, sparse=0.0), **changed}, "config.json")
    assert words in str(caught.value)
