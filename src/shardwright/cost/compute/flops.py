"""Model FLOPs: the arithmetic of training alone, without recomputation, by which MFU is measured."""

from __future__ import annotations

from shardwright.spec.model import Attention, Layer, Model


def iteration_flops(model: Model, global_batch: int, seq_len: int, attended_tokens: float | None = None) -> float:
    """Return the FLOPs of one iteration: twice the multiply-adds of the forward pass, times three for the backward.

    The convention of Megatron-LM's `num_floating_point_operations` (core_v0.19): matrix products of layers and
    logits, causal attention counted by the half of the scores that is used, windowed attention by its window. Within
    documents attention goes over `attended_tokens` (`Job.attended_tokens`) in place of whole samples.
    """
    tokens = float(global_batch) * seq_len
    attended = seq_len if attended_tokens is None else attended_tokens
    layers = sum(layer_flops_per_token(model, layer, attended) for layer in model.layers)
    last = model.layers[-1]
    predicted = model.mtp_layers * layer_flops_per_token(model, last, attended)
    predicted += model.mtp_layers * 4.0 * model.hidden * model.hidden
    logits = 2.0 * model.hidden * model.vocab * (1 + model.mtp_layers)
    return 3.0 * tokens * (layers + predicted + logits)


def layer_flops_per_token(model: Model, layer: Layer, seq_len: float) -> float:
    """Return forward FLOPs of one layer for one token of a sequence of `seq_len`."""
    flops = 2.0 * attention_weights(model, layer.attention) + score_flops_per_token(layer.attention, seq_len)
    if layer.mlp is not None:
        flops += 2.0 * (3 if layer.mlp.gated else 2) * model.hidden * layer.mlp.width
    if layer.moe is not None:
        width = layer.moe.top_k * layer.moe.expert_width + layer.moe.shared_width
        flops += 2.0 * layer.moe.matrices * model.hidden * width
    return flops


def attention_weights(model: Model, attention: Attention) -> int:
    """Return the elements of the projection matrices of attention."""
    out = attention.out_width * model.hidden
    mla = attention.latent
    if mla is None:
        return model.hidden * (attention.query_width + attention.key_width + attention.value_width) + out
    if mla.query_rank is None:
        query = model.hidden * attention.query_width
    else:
        query = mla.query_rank * (model.hidden + attention.query_width)
    keys_values = model.hidden * (mla.kv_rank + mla.rope_head_dim)
    keys_values += mla.kv_rank * attention.heads * (mla.nope_head_dim + attention.value_head_dim)
    return query + keys_values + out


def score_flops_per_token(attention: Attention, seq_len: float) -> float:
    """Return the FLOPs of scores and their product with the values: 2 (d_k + d_v) per head and attended token."""
    attended = seq_len / 2.0 if attention.causal else seq_len
    if attention.window is not None:
        attended = min(attended, float(attention.window))
    return 2.0 * attention.heads * (attention.head_dim + attention.value_head_dim) * attended
