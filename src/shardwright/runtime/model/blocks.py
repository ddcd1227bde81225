"""The blocks of a transformer layer as functions of their input and this rank's parts of the parameters.

`weights` maps names within the block ("query.weight") to tensors. Inputs and outputs are [micro_batch, positions,
hidden], between `enter` and `leave` of `parallel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from shardwright.runtime.model.context import ContextGroup
from shardwright.runtime.model.context_attention import attention_in_parts, recomputed_attention_in_parts
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.experts import Apart, called, experts
from shardwright.runtime.model.gated import Activation, Weights, inner, inside
from shardwright.runtime.model.masks import Documents, masked_attention
from shardwright.runtime.model.parallel import ExpertGroup, TensorGroup
from shardwright.runtime.model.products import Products
from shardwright.runtime.model.rotary import rotated
from shardwright.spec.model import Attention, Layer, Model

Table = tuple[torch.Tensor, torch.Tensor] | None
ACTIVATIONS: Mapping[str, Activation] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "swiglu": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}


def norm(x: torch.Tensor, weights: Weights, epsilon: float) -> torch.Tensor:
    """Return LayerNorm of `x` where there is a bias, else RMSNorm, over the last dimension."""
    weight, bias = weights["weight"], weights.get("bias")
    if bias is not None:
        return functional.layer_norm(x, weight.shape, weight, bias, epsilon)
    return functional.rms_norm(x, weight.shape, weight, epsilon)


def layer_forward(
    x: torch.Tensor,
    weights: Weights,
    layer: Layer,
    model: Model,
    details: Details,
    table: Table,
    tensor: TensorGroup,
    group: ExpertGroup,
    context: ContextGroup,
    products: Products,
    *,
    recompute_attention: bool,
    documents: Documents | None = None,
    apart: Apart = called,
) -> torch.Tensor:
    """Return the output of a layer: attention, then feed-forward, each on the norm of what it is added to. Attention
    stays within `documents`, which are of all positions. `apart` calls what is not to be compiled with the rest."""
    core = partial(_recomputed_core if recompute_attention else _core, documents=documents)
    core = partial(apart, core) if context.size > 1 else core
    normed = norm(x, inside(weights, "attention_norm"), details.norm_epsilon)
    x = x + attend(
        normed, inside(weights, "attention"), layer.attention, details, table, tensor, context, products, core
    )
    normed = norm(x, inside(weights, "mlp_norm"), details.norm_epsilon)
    activation = ACTIVATIONS[model.activation]
    if layer.moe is not None:
        return x + experts(
            normed, inside(weights, "moe"), layer.moe, activation, details, tensor, group, products, apart
        )
    return x + feed_forward(normed, inside(weights, "mlp"), activation, tensor, products)


def attend(
    x: torch.Tensor,
    weights: Weights,
    attention: Attention,
    details: Details,
    table: Table,
    tensor: TensorGroup,
    context: ContextGroup,
    products: Products,
    core: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """Return causal self-attention of `x`; this rank computes its part of the heads."""
    matrices = [(weights[f"{part}.weight"], weights.get(f"{part}.bias")) for part in ("query", "key", "value")]
    query, key, value = products.enter(x, matrices, tensor)
    batch, length = query.shape[:2]
    query, key = (found.view(batch, length, -1, attention.head_dim) for found in (query, key))
    value = value.view(batch, length, -1, attention.value_head_dim).transpose(1, 2)
    if attention.qk_norm:
        query = norm(query, inside(weights, "query_norm"), details.norm_epsilon)
        key = norm(key, inside(weights, "key_norm"), details.norm_epsilon)
    query, key = query.transpose(1, 2), key.transpose(1, 2)
    if table is not None:
        query, key = rotated(query, table), rotated(key, table)
    out = core(query, key, value, attention.window, context).transpose(1, 2).reshape(batch, length, -1)
    return _plus(products.leave(out, weights["out.weight"], tensor), weights.get("out.bias"))


def feed_forward(
    x: torch.Tensor, weights: Weights, activation: Activation, tensor: TensorGroup, products: Products
) -> torch.Tensor:
    """Return the feed-forward block of `x`, gated where it has a gate; this rank computes its part of the width."""
    return _plus(inner(x, weights, activation, products, tensor, tensor), weights.get("down.bias"))


def _plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias


def _core(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: int | None,
    context: ContextGroup,
    documents: Documents | None,
) -> torch.Tensor:
    """Return softmax(q k / sqrt(d)) v over earlier positions, the last `window` of them where there is a window, of the
    same document where there are documents. All are of this rank's part of the positions."""
    attention = partial(_attention, window=window, documents=documents)
    return (
        attention(query, key, value) if context.size == 1 else attention_in_parts(attention, query, key, value, context)
    )


def _recomputed_core(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: int | None,
    context: ContextGroup,
    documents: Documents | None,
) -> torch.Tensor:
    """Return the same, which the backward pass computes again."""
    attention = partial(_attention, window=window, documents=documents)
    if context.size > 1:
        return recomputed_attention_in_parts(attention, query, key, value, context)
    out = checkpoint(attention, query, key, value, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(out, torch.Tensor)
    return out


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None, documents: Documents | None
) -> torch.Tensor:
    """Return causal attention; the queries are of the last positions of the keys."""
    queries, keys = query.shape[2], key.shape[2]
    if documents is not None or (window is not None and window < keys):
        return masked_attention(query, key, value, window, documents)
    mask: Any = _lower_right(queries, keys) if queries < keys else None
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=query.shape[1] != key.shape[1]
    )


def _lower_right(queries: int, keys: int) -> Any:
    from torch.nn.attention.bias import causal_lower_right  # two seconds, which most models are spared

    return causal_lower_right(queries, keys)
