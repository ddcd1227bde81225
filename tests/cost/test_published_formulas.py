"""FLOPs and memory against the formulas that Megatron-LM and Korthikanti et al. 2022 published."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.flops import iteration_flops
from shardwright.cost.memory import layer_activation_bytes, state_bytes
from shardwright.cost.operators import Shard
from shardwright.cost.strategy import UNSHARDED, ZERO1
from shardwright.spec.job import Job
from shardwright.spec.load_model import load_model
from shardwright.spec.model import Model

PAPER = {
    "gpt-22b": (48, 6144, 64),
    "gpt3-175b": (96, 12288, 96),
    "gpt-530b": (105, 20480, 128),
    "gpt-1t": (128, 25600, 160),
}


def with_full_attention(model: Model) -> Model:
    """The same model without a causal mask: the papers of 2021 and 2022 count all scores."""
    layers = tuple(replace(layer, attention=replace(layer.attention, causal=False)) for layer in model.layers)
    return replace(model, layers=layers)


@pytest.mark.parametrize("name", PAPER)
def test_flops_of_narayanan_2021(name: str) -> None:
    """72 B s L h² (1 + s / 6h + V / 12 L h), arXiv 2104.04473 eq. 3 (without its factor for recomputation)."""
    layers, hidden, _ = PAPER[name]
    batch, seq, vocab = 64, 2048, 51200
    formula = 72 * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden))
    assert iteration_flops(with_full_attention(load_model(name)), batch, seq) == pytest.approx(formula, rel=1e-3)


@pytest.mark.parametrize("name", ["llama-2-70b", "llama-3.1-405b", "mistral-7b", "gpt3-175b"])
def test_flops_of_megatron_dense(name: str) -> None:
    """The transformer branch of num_floating_point_operations, core_v0.19: projections, half of the scores, the
    feed-forward block's two or three matrices, logits; times 2 for multiply-add and 3 for the backward pass."""
    model = load_model(name)
    attention, mlp = model.layers[0].attention, model.layers[0].mlp
    assert mlp is not None
    batch, seq = 32, 4096
    query, kv = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    per_layer = model.hidden * (query + 2 * kv) + query * model.hidden + query * seq / 2 * 2
    per_layer += model.hidden * mlp.width * (3 if mlp.gated else 2)
    formula = 3 * 2 * batch * seq * (len(model.layers) * per_layer + model.hidden * model.vocab)
    assert iteration_flops(model, batch, seq) == pytest.approx(formula, rel=1e-3)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_flops_of_megatron_experts(name: str) -> None:
    model = load_model(name)
    attention, moe = model.layers[0].attention, model.layers[0].moe
    assert moe is not None
    batch, seq = 16, 4096
    query, kv = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    per_layer = model.hidden * (query + 2 * kv) + query * model.hidden + query * seq
    per_layer += model.hidden * 3 * moe.expert_width * moe.top_k
    formula = 6 * batch * seq * (len(model.layers) * per_layer + model.hidden * model.vocab)
    assert iteration_flops(model, batch, seq) == pytest.approx(formula, rel=1e-3)


def test_flops_of_megatron_latent_attention() -> None:
    """DeepSeek-V3: MLA, shared and routed experts, three dense layers, one multi-token-prediction layer."""
    batch, seq, hidden, vocab, heads = 8, 4096, 7168, 129280, 128
    query_rank, kv_rank, nope, rope, value = 1536, 512, 128, 64, 128
    query = query_rank * (hidden + heads * (nope + rope) + 1)
    keys = kv_rank * (hidden + heads * (nope + value) + 1) + hidden * rope
    attention = query + keys + heads * value * hidden + seq * heads * ((nope + rope) + value) / 2
    dense, sparse = 3 * hidden * 18432, 3 * hidden * 2048 * (8 + 1)
    mtp_projection = 2 * hidden * hidden
    formula = 6 * batch * seq * (62 * attention + 3 * dense + 59 * sparse + mtp_projection + 2 * hidden * vocab)
    assert iteration_flops(load_model("deepseek-v3"), batch, seq) == pytest.approx(formula, rel=1e-3)


def activations(name: str, *, sequence_parallel: bool, flash: bool = False) -> tuple[float, float, float]:
    """Return kept bytes, those of core attention, and the input of one layer, at the paper's b = 4, t = 8."""
    model, ones = load_model(name), np.ones(1, dtype=np.int64)
    shard = Shard(
        tp=8 * ones,
        cp=ones,
        ep=ones,
        etp=ones,
        micro_batch=4 * ones,
        sequence_parallel=np.array([sequence_parallel]),
        flash=np.array([flash]),
        overlap_tp=np.array([False]),
    )
    found = layer_activation_bytes(model, shard, Job(global_batch=4, seq_len=2048))
    return float(found.kept[1][0]), float(found.core[1][0]), float(found.inputs[1][0])


@pytest.mark.parametrize("name", PAPER)
def test_activations_of_korthikanti_2022(name: str) -> None:
    """arXiv 2205.05198 table 2, per layer: tensor parallel sbh (10 + 24/t + 5as/ht); with sequence parallel
    sbh/t (34 + 5as/h); selective recomputation frees 5as²b/t; full recomputation keeps 2sbh (2sbh/t)."""
    _, hidden, heads = PAPER[name]
    size, t, scores = 2048 * 4 * hidden, 8, 5 * heads * 2048 / hidden
    kept, core, checkpoint = activations(name, sequence_parallel=False)
    assert kept == pytest.approx(size * (10 + 24 / t + scores / t))
    assert core == pytest.approx(size * scores / t)
    assert checkpoint == pytest.approx(2 * size)
    kept, core, checkpoint = activations(name, sequence_parallel=True)
    assert kept == pytest.approx(size / t * (34 + scores))
    assert kept - core == pytest.approx(34 * size / t)
    assert checkpoint == pytest.approx(2 * size / t)


@pytest.mark.parametrize("name", PAPER)
def test_flash_attention_keeps_no_scores(name: str) -> None:
    _, hidden, _ = PAPER[name]
    kept, core, _ = activations(name, sequence_parallel=True, flash=True)
    assert kept - core == pytest.approx(34 * 2048 * 4 * hidden / 8)
    assert core < 0.01 * kept


@pytest.mark.parametrize(
    ("sharding", "ranks", "per_parameter"),
    [(UNSHARDED, 1, 18), (UNSHARDED, 8, 18), (ZERO1, 1, 18), (ZERO1, 8, 6 + 12 / 8)],
)
def test_states_of_mixed_precision(sharding: int, ranks: int, per_parameter: float) -> None:
    """2 bytes of weight, 4 of gradient, 12 of optimizer state; with the distributed optimizer 6 + 12 / d."""
    parameters, none = np.array([1e9]), np.array([0.0])
    found = state_bytes(
        Job(global_batch=1, seq_len=1),
        parameters,
        none,
        np.array([ranks]),
        np.array([ranks]),
        np.array([sharding]),
        none,
        none,
    )
    total = found.weights + found.gradients + found.optimizer
    assert total[0] == pytest.approx(per_parameter * 1e9)
