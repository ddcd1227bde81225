"""FLOPs of an iteration against the published formulas of Megatron-LM, each written out here as plain arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cost.samples import attention, gpt, llama, mixtral

from shardwright import Job, Model, load_model
from shardwright.cost.compute.flops import iteration_flops, layer_flops_per_token
from shardwright.spec.layer import Attention, LatentAttention, Layer, Mlp, Moe

# Hidden size, layers and heads of the models of Narayanan et al. 2021 (arXiv 2104.04473, table 1), from 1.7 B to 1 T.
NARAYANAN = [
    (2304, 24, 24), (3072, 30, 32), (4096, 36, 32), (6144, 40, 48), (8192, 48, 64), (10240, 60, 80), (12288, 80, 96),
    (16384, 96, 128), (20480, 105, 128), (25600, 128, 160),
]  # fmt: skip


@pytest.mark.parametrize(("hidden", "layers", "heads"), NARAYANAN)
@pytest.mark.parametrize(("batch", "seq"), [(512, 2048), (3072, 2048), (1, 65536)])
def test_gpt_is_the_formula_of_narayanan(hidden, layers, heads, batch, seq):
    """72 B s l h² (1 + s/6h + V/12lh) without recomputation: the paper's 96 B s l h² (1 + s/6h + V/16lh) has a second
    forward pass. It counts the whole square of scores, as for a model that is not causal."""
    vocab = 51200
    paper = 72 * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden))
    assert iteration_flops(gpt(layers, hidden, heads, vocab, causal=False), batch, seq) == pytest.approx(
        paper, rel=1e-9
    )
    scores = 72 * batch * seq * layers * hidden**2 * seq / (6 * hidden)
    causal = iteration_flops(gpt(layers, hidden, heads, vocab), batch, seq)
    assert causal == pytest.approx(paper - scores / 2, rel=1e-9)


def megatron(
    *, layers, moe_layers, hidden, vocab, batch, seq, attention_term, core_term, ffn=0, moe_ffn=0, top_k=0, shared_ffn=0,
    mtp=0, gated=True,
):  # fmt: skip
    """transformer_flops() of num_floating_point_operations, NVIDIA/Megatron-LM core_v0.19.0:megatron/training/training.py.
    `attention_term` is per token and `core_term` per squared token of one layer; a last layer with experts gives the
    MTP layers experts."""
    dense_layers = layers - moe_layers + (0 if moe_layers else mtp)
    moe_layers += mtp if moe_layers else 0
    matrices = 3 if gated else 2
    per_token = 3 * 2 * hidden * matrices * (ffn * dense_layers + (moe_ffn * top_k + shared_ffn) * moe_layers)
    per_token += attention_term * (layers + mtp)
    per_token += 3 * 2 * mtp * (3 * hidden + 2 * hidden * hidden)
    per_token += 3 * 2 * hidden * vocab * (mtp + 1)
    return batch * seq * per_token + batch * seq**2 * core_term * (layers + mtp)


def grouped_query(hidden, heads, kv_heads, head_dim):
    query, keys = head_dim * heads, head_dim * kv_heads
    return 3 * 2 * (hidden * (query + 2 * keys) + query * hidden), 3 * 2 * query / 2 * 2


def latent(hidden, heads, query_rank, kv_rank, nope, rope, value):
    query = query_rank * (hidden + heads * (nope + rope) + 1) if query_rank else hidden * heads * (nope + rope)
    keys = kv_rank * (hidden + heads * (nope + value) + 1) + hidden * rope
    return 3 * 2 * (query + keys + heads * value * hidden), 3 * 2 * (heads * (nope + rope) / 2 + heads * value / 2)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq"),
    [(80, 8192, 64, 8, 28672, 32000, 4096), (126, 16384, 128, 8, 53248, 128256, 8192), (32, 4096, 32, 32, 11008, 32000, 512)],
    ids=["llama-2-70b", "llama-3.1-405b", "llama-2-7b"],
)  # fmt: skip
def test_grouped_queries_and_gated_mlp_are_megatrons(layers, hidden, heads, kv_heads, ffn, vocab, seq):
    linear, core = grouped_query(hidden, heads, kv_heads, hidden // heads)
    expected = megatron(
        layers=layers, moe_layers=0, hidden=hidden, vocab=vocab, batch=512, seq=seq, attention_term=linear, core_term=core,
        ffn=ffn,
    )  # fmt: skip
    model = llama(layers, hidden, heads, kv_heads, ffn, vocab)
    assert iteration_flops(model, 512, seq) == pytest.approx(expected, rel=1e-3)


def test_experts_are_megatrons():
    linear, core = grouped_query(4096, 32, 8, 128)
    expected = megatron(
        layers=32, moe_layers=32, hidden=4096, vocab=32000, batch=256, seq=4096, attention_term=linear, core_term=core,
        moe_ffn=14336, top_k=2,
    )  # fmt: skip
    assert iteration_flops(mixtral(32, 4096, 32, 8, 14336, 32000, 8, 2), 256, 4096) == pytest.approx(expected, rel=1e-3)


def test_shared_experts_between_dense_layers_are_megatrons():
    """The shape of Qwen2-57B-A14B, but with two dense layers in front."""
    linear, core = grouped_query(3584, 28, 4, 128)
    expected = megatron(
        layers=28, moe_layers=26, hidden=3584, vocab=151936, batch=128, seq=8192, attention_term=linear, core_term=core,
        ffn=18944, moe_ffn=2560, top_k=8, shared_ffn=20480,
    )  # fmt: skip
    moe = Moe(experts=64, top_k=8, expert_width=2560, gated=True, shared_width=20480, shared_gate=True)
    model = Model(
        name="", family="", hidden=3584, vocab=151936,
        layers=(
            *[Layer(attention=attention(28, 128, 4, qkv_bias=True), mlp=Mlp(width=18944, gated=True), moe=None)] * 2,
            *[Layer(attention=attention(28, 128, 4, qkv_bias=True), mlp=None, moe=moe)] * 26,
        ),
    )  # fmt: skip
    assert iteration_flops(model, 128, 8192) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("query_rank", [1536, None])
@pytest.mark.parametrize("mtp", [0, 1])
def test_deepseek_v3_is_megatrons(query_rank, mtp):
    linear, core = latent(7168, 128, query_rank, 512, 128, 64, 128)
    expected = megatron(
        layers=61, moe_layers=58, hidden=7168, vocab=129280, batch=64, seq=4096, attention_term=linear, core_term=core,
        ffn=18432, moe_ffn=2048, top_k=8, shared_ffn=2048, mtp=mtp,
    )  # fmt: skip
    mla = LatentAttention(query_rank=query_rank, kv_rank=512, nope_head_dim=128, rope_head_dim=64)
    heads = Attention(heads=128, kv_heads=128, head_dim=192, value_head_dim=128, latent=mla)
    moe = Moe(experts=256, top_k=8, expert_width=2048, gated=True, shared_width=2048, router_bias=True)
    layers = (
        *(Layer(attention=heads, mlp=Mlp(width=18432, gated=True), moe=None),) * 3,
        *(Layer(attention=heads, mlp=None, moe=moe),) * 58,
    )
    model = Model(name="", family="", hidden=7168, vocab=129280, layers=layers, mtp_layers=mtp)
    assert iteration_flops(model, 64, 4096) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("preset", "shape"),
    [
        ("llama-2-70b", {"layers": 80, "moe_layers": 0, "hidden": 8192, "vocab": 32000, "ffn": 28672}),
        ("llama-3.1-405b", {"layers": 126, "moe_layers": 0, "hidden": 16384, "vocab": 128256, "ffn": 53248}),
        (
            "mixtral-8x7b",
            {"layers": 32, "moe_layers": 32, "hidden": 4096, "vocab": 32000, "moe_ffn": 14336, "top_k": 2},
        ),
    ],
)
def test_presets_are_megatrons(preset, shape):
    heads = {"llama-2-70b": 64, "llama-3.1-405b": 128, "mixtral-8x7b": 32}[preset]
    linear, core = grouped_query(shape["hidden"], heads, 8, 128)
    expected = megatron(batch=8, seq=4096, attention_term=linear, core_term=core, **shape)
    assert iteration_flops(load_model(preset), 8, 4096) == pytest.approx(expected, rel=1e-3)


def test_a_window_bounds_the_tokens_that_a_query_sees():
    model = llama(4, 1024, 8, 8, 4096, 32000)
    near = replace(model.layers[0], attention=replace(model.layers[0].self_attention, window=256))
    gap = layer_flops_per_token(model, model.layers[0], 4096) - layer_flops_per_token(model, near, 4096)
    assert gap == pytest.approx(2 * 2 * 1024 * (2048 - 256))
    assert layer_flops_per_token(model, near, 512) == layer_flops_per_token(model, model.layers[0], 512)


def test_attention_within_documents_goes_over_their_own_tokens():
    """Causal attention over documents of L tokens: Σ L² / 2 scores, whatever they are packed into."""
    model = llama(4, 1024, 8, 8, 2816, 32000)
    lengths = [100, 700, 24, 200]
    document = sum(length**2 for length in lengths) / sum(lengths)
    job = Job(global_batch=8, seq_len=1024, document_tokens=document)
    packed = iteration_flops(model, 8, 1024, job.attended_tokens)
    apart = sum(iteration_flops(model, 8, length) for length in lengths)
    assert packed == pytest.approx(apart)
    assert Job(global_batch=8, seq_len=64, document_tokens=document).attended_tokens == 64
