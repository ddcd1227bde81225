"""What a family of models has that its `config.json` does not say: biases, norms, gates, positions.

The rows follow the model classes of Hugging Face transformers 5.23 (`models/*/modeling_*.py`); the tests compare
parameter counts with those classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from shardwright.spec.model import Norm, Position

Stated = bool | tuple[str, bool]
"""A trait that is fixed, or the field of the config that states it and what holds where that is missing."""

Windows = Literal["all", "later", "none", "listed"] | int
"""Which layers have the sliding window: all, none, those from `max_window_layers` on, those that `layer_types` must
list, or all but every n-th (where negative, all but the first and every n-th after it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The traits of a `model_type`.

    `tied`, `activation`, `rotary_base`, `rotary_fraction` and `dropout` hold where the config does not say; `sizes`
    are the sizes that transformers assumes where a config leaves them out. `width_factor` times the hidden size is the
    feed-forward width where none is given; `position_offset` rows of the position table are beyond its positions.
    Queries and keys have norms over each head, with the same weights, or `qk_norm_over` the whole projection. Layers
    with experts may have an `expert_norm` more; `sinks` are learned scores, one a head; `scalars` loose numbers of a
    layer. `norm_…` and `particular` are those of `Model`.
    """

    gated: bool = True
    activation: str = "silu"
    norm: Norm = "rmsnorm"
    norms: int = 2
    norm_vectors: int | None = None
    norm_about_one: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    position: Position = "rope"
    position_offset: int = 0
    rotary_base: float = 10000.0
    rotary_fraction: float = 1.0
    rotary_interleaved: bool = False
    qkv_bias: Stated = False
    out_bias: Stated = False
    mlp_bias: Stated = False
    qk_norm: Stated = False
    qk_norm_over: Literal["head", "projection"] = "head"
    sinks: bool = False
    scalars: int = 0
    head_bias: Stated = False
    tied: bool = False
    parallel: Stated = False
    windows: Windows = "none"
    causal: bool = True
    dropout: float = 0.0
    router_bias: bool = False
    expert_bias: bool = False
    expert_norm: bool = False
    shared_experts: int = 0
    shared_gate: bool = True
    width_factor: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    particular: str | None = None


MULTIPLIERS = "embeddings, residuals, attention and logits are scaled"
PARTLY_ROTARY = "some layers have no rotary positions"
NORMS_AFTER = "norms stand after attention and feed-forward block, not before"
CLAMPED = "the gate of the experts is clamped"
SINKS = "attention has learned sinks"
_LLAMA = Family(qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), mlp_bias=("mlp_bias", False))
_PLAIN = Family()
_MISTRAL = Family(windows="all")
_QWEN3 = Family(
    qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), qk_norm=True, windows="later",
    sizes={"head_dim": 128},
)  # fmt: skip
_GEMMA = Family(
    qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), tied=True,
    activation="gelu_pytorch_tanh", sizes={"head_dim": 256},
)  # fmt: skip
_GLM = Family(qkv_bias=("attention_bias", True), rotary_fraction=0.5, rotary_interleaved=True)
_GPT = Family(
    gated=False, activation="gelu", norm="layernorm", qkv_bias=True, out_bias=True, mlp_bias=True, width_factor=4
)
_GRANITE = replace(_LLAMA, particular=MULTIPLIERS)
_OLMO2 = Family(
    qkv_bias=("attention_bias", False), out_bias=("attention_bias", False), qk_norm=True, qk_norm_over="projection",
    particular=NORMS_AFTER,
)  # fmt: skip
_COHERE = Family(
    norm="layernorm", norms=1, norm_vectors=1, parallel=True, tied=True, qkv_bias=("attention_bias", False),
    out_bias=("attention_bias", False), rotary_interleaved=True, particular="logits are scaled",
)  # fmt: skip
_ERNIE = Family(
    qkv_bias=("use_bias", False), out_bias=("use_bias", False), mlp_bias=("use_bias", False), tied=True,
    rotary_base=5e5, rotary_interleaved=True,
)  # fmt: skip
_EXAONE = Family(qk_norm=True, windows=4, particular=f"{NORMS_AFTER}; {PARTLY_ROTARY}")
_GPT_J = replace(
    _GPT, norms=1, parallel=True, head_bias=True, qkv_bias=False, out_bias=False, activation="gelu_new",
    rotary_interleaved=True,
)  # fmt: skip
_FAIRSEQ = replace(
    _GPT, position="learned", position_offset=2, tied=True, dropout=0.1, particular="embeddings are scaled"
)
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": _LLAMA,
        "granite": _GRANITE,
        "mistral": _MISTRAL,
        "mixtral": replace(_MISTRAL, rotary_base=1e6),
        "phi3": _MISTRAL,
        "qwen2": Family(qkv_bias=True, windows="later"),
        "qwen2_moe": Family(qkv_bias=("qkv_bias", True), windows="later"),
        "qwen3": _QWEN3,
        "qwen3_moe": replace(_QWEN3, sizes={}),
        "deepseek_v2": replace(_LLAMA, mlp_bias=False),
        "deepseek_v3": replace(_LLAMA, mlp_bias=False, router_bias=True),
        "gemma": _GEMMA,
        "gemma2": replace(_GEMMA, norms=4, windows=2, sizes={"head_dim": 256, "sliding_window": 4096}),
        "gemma3_text": replace(
            _GEMMA, norms=4, qk_norm=True, windows=6, rotary_base=1e6,
            sizes={"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208,
                   "sliding_window": 4096, "max_position_embeddings": 131_072},
        ),
        "glm": _GLM,
        "glm4": replace(_GLM, norms=4),
        "glm4_moe": replace(
            _GLM, qkv_bias=("attention_bias", False), qk_norm=("use_qk_norm", False), router_bias=True,
            rotary_interleaved=False,
        ),
        "chatglm": Family(
            qkv_bias=("add_qkv_bias", False), out_bias=("add_bias_linear", False), mlp_bias=("add_bias_linear", False),
            rotary_fraction=0.5, rotary_interleaved=True,
        ),
        "phi": replace(
            _GPT, norms=1, parallel=True, head_bias=True, qk_norm=("qk_layernorm", False), activation="gelu_new",
            rotary_fraction=0.5,
        ),
        "gpt_neox": replace(
            _GPT, qkv_bias=("attention_bias", True), out_bias=("attention_bias", True), rotary_fraction=0.25,
            parallel=("use_parallel_residual", True),
        ),
        "gpt2": replace(_GPT, position="learned", tied=True, dropout=0.1, activation="gelu_new"),
        "opt": replace(
            _GPT, position="learned", position_offset=2, tied=True, dropout=0.1, activation="relu",
            qkv_bias=("enable_bias", True), out_bias=("enable_bias", True), mlp_bias=("enable_bias", True),
        ),
        "bert": replace(
            _GPT, position="learned", tied=True, dropout=0.1, causal=False, final_norm=False, embedding_norm=True,
        ),
        "falcon": replace(
            _GPT, qkv_bias=("bias", False), out_bias=("bias", False), mlp_bias=("bias", False), tied=True,
        ),
        "bloom": replace(_GPT, position="alibi", tied=True, embedding_norm=True),
        "nemotron": replace(
            _GPT, qkv_bias=("attention_bias", False), out_bias=("attention_bias", False),
            mlp_bias=("mlp_bias", False), activation="relu2", rotary_fraction=0.5, width_factor=None,
            norm_about_one=True,
        ),
        "starcoder2": replace(
            _GPT, qkv_bias=("use_bias", True), out_bias=("use_bias", True), mlp_bias=("use_bias", True), tied=True,
            windows="all", activation="gelu_pytorch_tanh", width_factor=None,
        ),
        "apertus": replace(_LLAMA, mlp_bias=False, gated=False, activation="xielu", qk_norm=True, scalars=2,
                           rotary_base=12e6),
        "arcee": replace(_LLAMA, gated=False, activation="relu2"),
        "aria_text": _LLAMA,
        "axk1": replace(
            _LLAMA, mlp_bias=False, router_bias=True, expert_norm=True, particular="a norm after the experts"
        ),
        "biogpt": _FAIRSEQ,
        "codegen": _GPT_J,
        "cohere": replace(_COHERE, qk_norm=("use_qk_norm", False), qk_norm_over="projection", rotary_base=5e5),
        "cohere2": replace(_COHERE, windows=4, particular=f"{_COHERE.particular}; {PARTLY_ROTARY}"),
        "cohere2_moe": replace(_COHERE, windows=4, particular=f"{_COHERE.particular}; {PARTLY_ROTARY}"),
        "cwm": Family(windows=-4, rotary_base=1e6),
        "dots1": replace(_QWEN3, sizes={}, router_bias=True),
        "emu3_text_model": _LLAMA,
        "ernie4_5": _ERNIE,
        "ernie4_5_moe": replace(_ERNIE, router_bias=True),
        "exaone4": _EXAONE,
        "exaone_moe": replace(_EXAONE, router_bias=True, particular=PARTLY_ROTARY),
        "flint": Family(qk_norm=True, sinks=True, shared_gate=False, windows="listed", particular=SINKS),
        "flex_olmo": replace(_OLMO2, rotary_base=5e5),
        "glm4_moe_lite": replace(_LLAMA, mlp_bias=False, router_bias=True),
        "gpt_bigcode": replace(
            _GPT, position="learned", tied=True, dropout=0.1, activation="gelu_pytorch_tanh",
        ),
        "gpt_neo": replace(
            _GPT, position="learned", tied=True, qkv_bias=False, activation="gelu_new",
            particular="scores of attention are not scaled",
        ),
        "gpt_oss": Family(
            qkv_bias=("attention_bias", True), out_bias=("attention_bias", True), windows=2, sinks=True,
            router_bias=True, expert_bias=True, rotary_base=150_000.0, sizes={"head_dim": 64},
            particular=f"{SINKS}; {CLAMPED}",
        ),
        "gptj": _GPT_J,
        "granite_swa": replace(_GRANITE, windows=-4, sinks=True, tied=True, particular=f"{SINKS}; {MULTIPLIERS}"),
        "granitemoe": replace(_GRANITE, mlp_bias=False),
        "granitemoe_swa": replace(
            _GRANITE, mlp_bias=False, windows=-4, sinks=True, particular=f"{SINKS}; {MULTIPLIERS}"
        ),
        "granitemoeshared": replace(_GRANITE, mlp_bias=False),
        "helium": replace(_LLAMA, rotary_base=1e5, sizes={"head_dim": 128}, rotary_interleaved=True),
        "hunyuan_v1_dense": replace(_LLAMA, mlp_bias=False, qk_norm=True),
        "hunyuan_v1_moe": replace(_LLAMA, mlp_bias=False, qk_norm=True, shared_experts=1),
        "hy_v3": replace(_LLAMA, qk_norm=True, router_bias=True),
        "hyperclovax": replace(_LLAMA, norms=4, particular=MULTIPLIERS),
        "internlm3": _LLAMA,
        "iquestcoder": _LLAMA,
        "jais2": replace(
            _GPT, activation="relu2", qkv_bias=("attention_bias", True), out_bias=("attention_bias", True),
            mlp_bias=("mlp_bias", True), width_factor=None,
        ),
        "kolibri1": Family(norms=4, qk_norm=True, windows=5, router_bias=True, shared_gate=False),
        "llama4_text": replace(
            _LLAMA, mlp_bias=False, windows=4, shared_experts=1, rotary_base=5e5,
            particular=f"{PARTLY_ROTARY}; queries and keys are normed without weights; experts weigh their input",
        ),
        "mellum": replace(_QWEN3, sizes={}, windows="none"),
        "minicpm3": replace(_LLAMA, tied=True, particular=MULTIPLIERS),
        "minimax_m2": Family(qk_norm=True, qk_norm_over="projection", router_bias=True, rotary_base=5e6),
        "ministral": replace(_MISTRAL),
        "ministral3": replace(_MISTRAL, windows="none", particular="queries are scaled by their position"),
        "mpt": replace(
            _GPT, position="alibi", tied=True, norm_vectors=1, qkv_bias=False, out_bias=False, mlp_bias=False,
        ),
        "nanochat": replace(
            _LLAMA, mlp_bias=False, gated=False, activation="relu2", norm_vectors=0, embedding_norm=True,
            particular="queries and keys are normed without weights, and logits are capped",
        ),
        "olmo": replace(_LLAMA, mlp_bias=False, norm="layernorm", norm_vectors=0,
                        particular="queries, keys and values may be clipped"),
        "olmo2": _OLMO2,
        "olmo3": replace(_OLMO2, windows=4, rotary_base=5e5),
        "olmoe": replace(_OLMO2, particular="queries, keys and values may be clipped"),
        "openai-gpt": replace(
            _GPT, position="learned", tied=True, dropout=0.1, final_norm=False, particular=NORMS_AFTER
        ),
        "persimmon": replace(_GPT, activation="relu2", qk_norm=("qk_layernorm", True), rotary_fraction=0.5),
        "phimoe": replace(
            _LLAMA, norm="layernorm", mlp_bias=False, windows="all", head_bias=("lm_head_bias", False),
            rotary_base=1e6, particular="experts are chosen one after the other (sparse mixer)",
        ),
        "seed_oss": Family(
            qkv_bias=("attention_bias", True), out_bias=("attention_out_bias", False), mlp_bias=("mlp_bias", False),
            sizes={"head_dim": 128},
        ),
        "smollm3": replace(_LLAMA, windows="later", tied=True, rotary_base=2e6, particular=PARTLY_ROTARY),
        "solar_open": replace(_LLAMA, mlp_bias=False, router_bias=True),
        "stablelm": Family(
            norm="layernorm", qkv_bias=("use_qkv_bias", False), qk_norm=("qk_layernorm", False),
            qk_norm_over="projection", parallel=("use_parallel_residual", False), rotary_fraction=0.25,
        ),
        "vaultgemma": replace(
            _GEMMA, windows=2, sizes={"head_dim": 256, "sliding_window": 4096},
            particular="scores and logits are capped, and embeddings scaled",
        ),
        "xglm": replace(
            _FAIRSEQ, position="none", particular="positions are added as sines, and embeddings are scaled"
        ),
        "youtu": replace(_LLAMA, mlp_bias=False, tied=True),
    }
)  # fmt: skip
SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "RefinedWeb": "falcon",
        "RefinedWebModel": "falcon",
        "code_llama": "llama",
        "gemma3": "gemma3_text",
        "emu3": "emu3_text_model",
        "gpt-sw3": "gpt2",
        "kimi_k25": "deepseek_v3",
        "llama4": "llama4_text",
        "mistral3": "mistral",
        "glm4v_text": "glm4",
        "kimi_k2": "deepseek_v3",
        "phi-msft": "phi",
        "qwen2_5_vl": "qwen2",
        "qwen2_5_vl_text": "qwen2",
        "qwen2_vl": "qwen2",
        "qwen2_vl_text": "qwen2",
        "qwen3_vl_moe_text": "qwen3_moe",
        "qwen3_vl_text": "qwen3",
    }
)
