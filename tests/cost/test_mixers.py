"""Mixers: FLOPs against PyTorch's own counter over the code of transformers, kept bytes against saved tensors, and what
sharding makes of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cost.saved_tensors import counted_flops, saved_bytes
from tests.nightly import nightly
from tests.spec.test_towers import ONE

from shardwright import load_model, make_job
from shardwright.cost.compute.flops import layer_flops_per_token, score_flops_per_token
from shardwright.cost.compute.operator_table import FORWARD, GEMM, table
from shardwright.cost.compute.operators import Shard, layer_operators
from shardwright.cost.memory.activations import layer_activation_bytes
from shardwright.errors import Problem
from shardwright.plans.codec import decode, encode
from shardwright.spec.layer import Layer
from shardwright.spec.mixers import GatedDelta, Mamba2
from shardwright.spec.read.huggingface import model_of_config

TOKENS = 128
BASE: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip
SSM: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 2, "mamba_d_state": 48, "mamba_chunk_size": TOKENS,
}  # fmt: skip
DELTA: dict[str, Any] = {
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 48, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
LATENT: dict[str, Any] = BASE | {
    "num_key_value_heads": 4, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "mlp_layer_types": ["dense", "dense"],
}  # fmt: skip
KIMI = LATENT | {"q_lora_rank": None, "num_experts": 4, "layer_types": ["linear_attention", "full_attention"]}
INDEXED = LATENT | {"q_lora_rank": 96, "index_topk": TOKENS, "index_n_heads": 4, "index_head_dim": 32}
STATE: dict[str, Any] = {"vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 2, "state_size": 48}
SHARING: dict[str, Any] = BASE | {
    "num_key_value_heads": 4, "n_mamba_heads": 2, "layers_block_type": ["mamba", "hybrid", "hybrid"],
    "num_hidden_layers": 3, "adapter_rank": 24, "mamba_d_state": 16,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "mamba": STATE,
    "mamba2": STATE | {"num_heads": 8, "head_dim": 32, "n_groups": 2, "chunk_size": TOKENS},
    "qwen3_5_text": BASE | DELTA,
    "kimi_linear": KIMI | {"linear_num_heads": 4, "linear_head_dim": 32},
    "lfm2": BASE | {"layer_types": ["conv", "full_attention"]},
    "recurrent_gemma": BASE | {"num_hidden_layers": 3, "lru_width": 128, "attention_window_size": 4096},
    "glm_moe_dsa": INDEXED | {"indexer_types": ["full", "shared"]},
    "zamba": SHARING,
    "zamba2": SHARING | {"num_mem_blocks": 2, "chunk_size": TOKENS, "use_shared_attention_adapter": True},
}
LONGER: dict[str, dict[str, Any]] = {
    "falcon_mamba": STATE,
    "bamba": BASE | SSM | {"attn_layer_indices": [1]},
    "falcon_h1": BASE | SSM | {"mamba_d_ssm": 256},
    "olmo_hybrid": BASE | DELTA,
    "bailing_hybrid": KIMI | {"head_dim": 32, "num_nextn_predict_layers": 0},
    "deepseek_v32": INDEXED,
}


def flops_of_transformers(model_type: str, fields: dict[str, Any]) -> int:
    """Return the FLOPs of a forward pass of one sample, as PyTorch counts those of the class of transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[model_type](**fields)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return counted_flops(lambda: model(input_ids=torch.zeros((1, TOKENS), dtype=torch.long), use_cache=False))


def otherwise(layer: Layer) -> float:
    """Return the FLOPs of a token by which the eager code of transformers differs from the kernels that are priced.

    That of Mamba-2 repeats groups for all heads and does not skip what is not causal within a chunk. That of the delta
    rule solves a triangular system, which the counter does not see, where fla multiplies by an inverse.
    """
    mixer = layer.mixer
    if isinstance(mixer, Mamba2):
        more = mixer.heads - mixer.groups / 2.0
        return 2.0 * mixer.chunk * (mixer.state * more + mixer.inner / 2.0)
    if isinstance(mixer, GatedDelta):
        return -2.0 * 64 * mixer.value_heads * (mixer.key_dim + mixer.value_dim)
    return 0.0


def compare(model_type: str, fields: dict[str, Any]) -> None:
    model = model_of_config({"model_type": model_type, **fields}, "config.json")
    total = 2.0 * model.hidden * model.vocab
    for layer in model.layers:
        eager = layer.attention and replace(layer, attention=replace(layer.attention, causal=False))
        total += layer_flops_per_token(model, eager or layer, TOKENS) + otherwise(layer)
    assert total * TOKENS == pytest.approx(flops_of_transformers(model_type, fields), rel=5e-3)


@pytest.mark.parametrize("model_type", [*CASES, *nightly(LONGER)])
def test_flops_are_those_that_pytorch_counts(model_type: str) -> None:
    compare(model_type, (CASES | LONGER)[model_type])


def test_flops_of_lightning_attention() -> None:
    """Its class alone: all families that have it have experts, which are counted by the tokens that reach them."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.minimax.configuration_minimax import MiniMaxConfig
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

    fields = BASE | {"head_dim": 32, "block_size": 64, "num_local_experts": 4}
    module = MiniMaxLightningAttention(MiniMaxConfig(**fields), layer_idx=1)
    counted = counted_flops(lambda: module(torch.zeros((1, TOKENS, 128)), (None, None), None))
    mixer = model_of_config({"model_type": "minimax", **fields}, "config.json").layers[1].mixer
    assert mixer is not None
    assert mixer.work(128).flops * TOKENS == pytest.approx(counted, rel=5e-3)


def test_kept_bytes_of_the_short_convolution_are_its_saved_tensors() -> None:
    """The one mixer whose kernels are PyTorch's own. Every storage that the backward pass keeps counts once."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.lfm2.configuration_lfm2 import Lfm2Config
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

    module = Lfm2ShortConv(Lfm2Config(**CASES["lfm2"]), layer_idx=0).bfloat16()
    hidden = torch.randn((1, TOKENS, 128), dtype=torch.bfloat16, requires_grad=True)
    saved = saved_bytes(module, lambda: module(hidden))
    mixer = model_of_config({"model_type": "lfm2", **CASES["lfm2"]}, "config.json").layers[0].mixer
    assert mixer is not None
    work = mixer.work(128)
    ours = TOKENS * (2.0 * (work.kept + 128) + 4.0 * work.kept_single)
    assert ours == pytest.approx(saved, rel=0.03)


@pytest.mark.parametrize("fields", [{}, {"use_shared_attention_adapter": True}, {"add_bias_linear": True}], ids=str)
def test_kept_bytes_of_a_shared_block_are_its_saved_tensors(fields: dict[str, Any]) -> None:
    """What a layer of Zamba2 keeps beyond its mixer, of the block in transformers and the product after it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.zamba2.configuration_zamba2 import Zamba2Config
    from transformers.models.zamba2.modeling_zamba2 import Zamba2AttentionDecoderLayer

    given = SHARING | {"hidden_size": 512, "intermediate_size": 2048, "adapter_rank": 128} | fields
    config = Zamba2Config(**given)
    config._attn_implementation = "sdpa"
    block, square = Zamba2AttentionDecoderLayer(config, block_id=0, layer_idx=1), torch.nn.Linear(512, 512, bias=False)
    module = torch.nn.ModuleList([block, square]).bfloat16()
    hidden, embedded = (torch.randn((1, 512, 512), dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    saved = saved_bytes(module, lambda: square(block(hidden, embedded, layer_idx=1)))
    model = model_of_config({"model_type": "zamba2", **given}, "config.json")
    kept = layer_activation_bytes(model, ONE, make_job(global_batch=1, seq_len=512, framework="fsdp")).kept
    mixer, sharing = (kept[1 + kind][0] for kind in model.kind_of_layer[:2])
    assert sharing - mixer == pytest.approx(saved, rel=0.03)


def shards(tp: list[int]) -> Shard:
    size = len(tp)
    ones, no = np.ones(size, dtype=np.int64), np.zeros(size, dtype=bool)
    return Shard(
        tp=np.array(tp), cp=ones, ep=ones, etp=ones, micro_batch=ones, sequence_parallel=~no, flash=~no, overlap_tp=no
    )


MIXED = (
    "nemotron-nano-9b-v2",
    "qwen3-next-80b-a3b",
    "kimi-linear-48b-a3b",
    "jamba-v0.1",
    "minimax-text-01",
    "lfm2-1.2b",
    "zamba-7b-v1",
    "zamba2-1.2b",
)


@pytest.mark.parametrize("name", MIXED)
def test_operators_have_the_flops_of_the_model(name: str) -> None:
    """Products and scans of one rank, times the ranks, are what the model's own count says, without router, convolution,
    recurrence and scores."""
    model, job = load_model(name), make_job(global_batch=8, seq_len=2048)
    for layer in (kind for kind in model.kinds if kind.mixer):
        operators = table(list(layer_operators(model, layer, shards([1, 2]), job)))
        products = (operators.kind == GEMM) & (operators.direction == FORWARD)
        flops = np.sum(np.where(products, operators.flops, 0.0), axis=0)
        assert layer.mixer is not None
        work = layer.mixer.work(model.hidden)
        counted = layer_flops_per_token(model, layer, 2048) - 2.0 * (work.convolution + work.recurrence)
        counted += 2.0 * model.hidden * layer.moe.experts if layer.moe else 0.0
        counted -= score_flops_per_token(layer.attention, 2048) if layer.attention else 0.0
        assert flops[0] == pytest.approx(2048 * counted)
        assert flops[1] == pytest.approx(flops[0] / 2.0, rel=0.02)  # low-rank gates are whole on every rank


@pytest.mark.parametrize("name", MIXED)
def test_every_kind_keeps_something_of_its_own(name: str) -> None:
    model, job = load_model(name), make_job(global_batch=8, seq_len=2048)
    kept = layer_activation_bytes(model, shards([1, 2]), job).kept[1:-1]
    assert all((one_rank > two_ranks).all() for one_rank, two_ranks in ((row[:1], row[1:]) for row in kept))
    assert len({round(float(row[0])) for row in kept}) == len(kept)


@pytest.mark.parametrize(
    ("mixer", "place"),
    [
        ({"Mamba3": {}}, "plan: Mamba3"),
        ({"Mamba2": {}, "Mamba": {}}, "plan"),
        ([], "plan"),
        ({"Mamba2": {"heads": 8}}, "plan: Mamba2.head_dim"),
    ],
)
def test_a_plan_file_that_says_no_kind_is_refused(mixer: object, place: str) -> None:
    problems: list[Problem] = []
    document = {"attention": None, "mlp": None, "moe": None, "mixer": mixer}
    decode(document, Layer, "plan", problems)
    assert any(problem.path.replace("mixer.", "").replace("mixer", "").rstrip(": ") == place for problem in problems)


def test_a_plan_file_keeps_a_mixer_by_its_kind() -> None:
    layer = load_model("nemotron-nano-9b-v2").layers[0]
    written = encode(layer, Layer)
    assert list(written["mixer"]) == ["Mamba2"]
    assert decode(written, Layer, "plan", []) == layer
