"""What a family of models has that its `config.json` does not say: biases, norms, gates, positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from shardwright.spec.model import Norm, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Defaults of a `model_type`; a field of the config with the same meaning goes before them."""

    gated: bool = True
    norm: Norm = "rmsnorm"
    norms: int = 2
    position: Position = "rope"
    activation: str = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    head_bias: bool = False
    dropout: float = 0.0
    causal: bool = True
    width_factor: int | None = None
    position_offset: int = 0


_LLAMA = Family()
_BIASED = Family(
    gated=False, norm="layernorm", activation="gelu", qkv_bias=True, out_bias=True, mlp_bias=True, width_factor=4
)
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": _LLAMA,
        "mistral": _LLAMA,
        "mixtral": _LLAMA,
        "phi3": _LLAMA,
        "deepseek_v2": _LLAMA,
        "deepseek_v3": _LLAMA,
        "qwen2": replace(_LLAMA, qkv_bias=True),
        "qwen2_moe": replace(_LLAMA, qkv_bias=True),
        "qwen3": replace(_LLAMA, qk_norm=True),
        "qwen3_moe": replace(_LLAMA, qk_norm=True),
        "gemma": replace(_LLAMA, tied=True, activation="gelu_pytorch_tanh"),
        "gemma2": replace(_LLAMA, tied=True, activation="gelu_pytorch_tanh", norms=4),
        "gemma3_text": replace(_LLAMA, tied=True, activation="gelu_pytorch_tanh", norms=4, qk_norm=True),
        "glm": replace(_LLAMA, qkv_bias=True),
        "glm4": replace(_LLAMA, qkv_bias=True, norms=4),
        "chatglm": replace(_LLAMA, qkv_bias=True),
        "phi": replace(_BIASED, norms=1, head_bias=True),
        "gpt_neox": _BIASED,
        "gpt2": replace(_BIASED, position="learned", tied=True, dropout=0.1),
        "opt": replace(_BIASED, position="learned", tied=True, dropout=0.1, activation="relu", position_offset=2),
        "bert": replace(
            _BIASED, position="learned", tied=True, dropout=0.1, causal=False, final_norm=False, embedding_norm=True
        ),
        "falcon": replace(
            _BIASED, qkv_bias=False, out_bias=False, mlp_bias=False, norms=1, tied=True,
        ),
    }
)  # fmt: skip
SYNONYMS: Mapping[str, str] = MappingProxyType(
    {"gemma3": "gemma3_text", "RefinedWeb": "falcon", "RefinedWebModel": "falcon", "phi-msft": "phi"}
)
