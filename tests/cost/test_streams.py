"""What a layer of Gemma 3n, which has several residual streams, keeps under plain PyTorch, against the tensors that
autograd saves of transformers' classes, and its FLOPs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cost.test_text_families import BASE, FULL, SLIDING, TOKENS, built, forward_flops, kept, saved
from tests.spec.test_towers import ONE

from shardwright.cost.compute.operator_table import FORWARD, GEMM, table
from shardwright.cost.compute.operators import embedding_operators, head_operators, layer_operators
from shardwright.cost.memory.activations import layer_activation_bytes
from shardwright.errors import SpecError
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.job import make_job

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
        memory = layer_activation_bytes(model, ONE, make_job(global_batch=1, seq_len=TOKENS, framework="fsdp"))
        everything = kept("gemma3n_text", given) + float(memory.before_logits[0])
        ends.append((everything, saved("gemma3n_text", given)))
    (few, theirs), (more, theirs_more) = ends
    assert more - few == pytest.approx(theirs_more - theirs, rel=0.03)


def test_a_step_has_the_flops_that_pytorch_counts() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    given = fields(MORE, sparse=0.95)
    theirs = built("gemma3n_text", given, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        theirs(input_ids=torch.zeros((1, TOKENS), dtype=torch.long), use_cache=False)
    model = model_of_config({"model_type": "gemma3n_text", **given}, "config.json")
    expected = TOKENS * (forward_flops(model) + 4.0 * model.stream_parameters)
    assert expected == pytest.approx(counter.get_total_flops(), rel=5e-3)
    job, total = make_job(global_batch=1, seq_len=TOKENS, framework="fsdp"), 0.0
    kinds = ((model.kind_of_layer.count(place), kind) for place, kind in enumerate(model.kinds))
    parts = [(1, embedding_operators(model, ONE, job)), (1, head_operators(model, ONE, job))]
    for count, operators in [*parts, *((count, layer_operators(model, kind, ONE, job)) for count, kind in kinds)]:
        rows = table(list(operators))
        total += count * float(rows.flops[(rows.kind == GEMM) & (rows.direction == FORWARD)].sum())
    scores = sum(4.0 * layer.self_attention.heads * layer.self_attention.head_dim * TOKENS for layer in model.layers)
    assert total == pytest.approx(expected - TOKENS * scores, rel=1e-9)


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
