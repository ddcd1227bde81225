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

Windows = Literal["all", "later", "none"] | int
"""Which layers have the sliding window: all, none, those from `max_window_layers` on, or all but every n-th."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The traits of a `model_type`.

    `tied`, `activation`, `rotary_base`, `rotary_fraction` and `dropout` hold where the config does not say; `sizes`
    are the sizes that transformers assumes where a config leaves them out. `width_factor` times the hidden size is the
    feed-forward width where none is given; `position_offset` rows of the position table are beyond its positions.
    """

    gated: bool = True
    activation: str = "silu"
    norm: Norm = "rmsnorm"
    norms: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    position: Position = "rope"
    position_offset: int = 0
    rotary_base: float = 10000.0
    rotary_fraction: float = 1.0
    qkv_bias: Stated = False
    out_bias: Stated = False
    mlp_bias: Stated = False
    qk_norm: Stated = False
    head_bias: bool = False
    tied: bool = False
    parallel: Stated = False
    windows: Windows = "none"
    causal: bool = True
    dropout: float = 0.0
    router_bias: bool = False
    width_factor: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)


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
_GLM = Family(qkv_bias=("attention_bias", True), rotary_fraction=0.5)
_GPT = Family(
    gated=False, activation="gelu", norm="layernorm", qkv_bias=True, out_bias=True, mlp_bias=True, width_factor=4
)
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": _LLAMA,
        "granite": _LLAMA,
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
            _GLM, qkv_bias=("attention_bias", False), qk_norm=("use_qk_norm", False), router_bias=True
        ),
        "chatglm": Family(
            qkv_bias=("add_qkv_bias", False), out_bias=("add_bias_linear", False), mlp_bias=("add_bias_linear", False),
            rotary_fraction=0.5,
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
        ),
        "starcoder2": replace(
            _GPT, qkv_bias=("use_bias", True), out_bias=("use_bias", True), mlp_bias=("use_bias", True), tied=True,
            windows="all", activation="gelu_pytorch_tanh", width_factor=None,
        ),
    }
)  # fmt: skip
SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "RefinedWeb": "falcon",
        "RefinedWebModel": "falcon",
        "code_llama": "llama",
        "gemma3": "gemma3_text",
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
