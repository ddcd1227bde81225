"""The model as the fields of Megatron-Bridge's GPTModelProvider, or MLAModelProvider for latent attention (0.6.2).

They are the fields of megatron-core's configuration: what Megatron-LM has no argument for has no field here either.
"""

from __future__ import annotations

from typing import Any

from shardwright.exporters.megatron.positions import position_fields
from shardwright.exporters.support.traits import SILU, SQUARED_RELU
from shardwright.spec.model import Attention, Model

Fields = dict[str, Any]
FUNCTIONS = {"silu": "torch.nn.functional.silu", "gelu": "torch.nn.functional.gelu", "relu2": "squared_relu"}


def provider_of(model: Model) -> str:
    """Return the class that builds the model."""
    return "MLAModelProvider" if model.self_attention.latent else "GPTModelProvider"


def activation_of(model: Model) -> str:
    """Return the activation function as an expression of the recipe."""
    name = model.activation.casefold()
    key = "silu" if name in SILU else "relu2" if name in SQUARED_RELU else "gelu"
    return FUNCTIONS[key]


def provider_fields(model: Model, seq_len: int) -> Fields:
    """Return the fields that describe `model`, none of whose layers is refused."""
    attention = model.self_attention
    widths = [kind.mlp.width for kind in model.kinds if kind.mlp]
    gated = any((kind.mlp and kind.mlp.gated) or (kind.moe and kind.moe.gated) for kind in model.kinds)
    fields: Fields = {
        "num_layers": len(model.layers),
        "hidden_size": model.hidden,
        "ffn_hidden_size": widths[0] if widths else next(kind.moe.expert_width for kind in model.kinds if kind.moe),
        "num_attention_heads": attention.heads,
        "seq_length": seq_len,
        "vocab_size": model.vocab,
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "gated_linear_unit": gated,
        "add_bias_linear": attention.out_bias,
        "add_qkv_bias": attention.qkv_bias and not attention.out_bias,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "hidden_dropout": 0.1 if model.dropout else 0.0,
        "attention_dropout": 0.1 if model.dropout else 0.0,
    }
    if model.norm_epsilon is not None:
        fields["layernorm_epsilon"] = model.norm_epsilon
    if model.norm_about_one:
        fields["layernorm_zero_centered_gamma"] = True
    if model.mtp_layers:
        fields["mtp_num_layers"] = model.mtp_layers
    return fields | _attention(attention) | _window(model) | position_fields(model) | _experts(model)


def _attention(attention: Attention) -> Fields:
    latent = attention.latent
    if latent is None:
        shape = {"num_query_groups": attention.kv_heads, "kv_channels": attention.head_dim}
        return {**shape, "qk_layernorm": attention.qk_norm}
    return {
        "multi_latent_attention": True,
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_head_dim": latent.nope_head_dim,
        "qk_pos_emb_head_dim": latent.rope_head_dim,
        "v_head_dim": attention.value_head_dim,
        "kv_channels": attention.value_head_dim,
        "qk_layernorm": True,
    }


def _window(model: Model) -> Fields:
    """A window of W tokens counts the token itself, so W - 1 to the left."""
    windows = [layer.window for layer in model.layers]
    width = next((window for window in windows if window is not None), None)
    if width is None:
        return {}
    pattern = {} if all(windows) else {"window_attn_skip_freq": [int(window is not None) for window in windows]}
    return {"window_size": (width - 1, 0), **pattern}


def _experts(model: Model) -> Fields:
    moe = next((kind.moe for kind in model.kinds if kind.moe), None)
    if moe is None:
        return {}
    pattern = [int(layer.moe is not None) for layer in model.layers]
    fields: Fields = {
        "num_moe_experts": moe.experts,
        "moe_router_topk": moe.top_k,
        "moe_ffn_hidden_size": moe.expert_width,
        "moe_grouped_gemm": True,
        "moe_router_load_balancing_type": "none" if moe.router_bias else "aux_loss",
    }
    if not all(pattern):
        fields["moe_layer_freq"] = pattern
    if moe.shared_width:
        fields["moe_shared_expert_intermediate_size"] = moe.shared_width
    if moe.shared_gate:
        fields["moe_shared_expert_gate"] = True
    if moe.router_bias:
        fields |= {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
        fields["moe_router_dtype"] = "fp32"
    elif moe.pre_softmax or moe.top_k == 1:
        fields["moe_router_pre_softmax"] = True
    if moe.router_groups and moe.router_top_groups:
        fields |= {"moe_router_num_groups": moe.router_groups, "moe_router_group_topk": moe.router_top_groups}
    if moe.router_scaling is not None:
        fields["moe_router_topk_scaling_factor"] = moe.router_scaling
    return fields
