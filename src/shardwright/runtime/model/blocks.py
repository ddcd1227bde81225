"""The blocks of a transformer layer as functions of their input and this rank's parts of the parameters.

`weights` maps names within the block ("query.weight") to tensors. Inputs and outputs are [micro_batch, positions,
hidden], between `enter` and `leave` of `parallel`.

Layers are compiled as regions: each kind of layer once, whatever their number (as torchtitan does).
Collectives of tensor parallelism are part of the compiled region, the same one on all ranks of a stage, which so meet
in the same order. Attention under context parallelism differs from rank to rank, and for experts on several ranks the
host reads how many rows go where: these run operator by operator between two regions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from shardwright.runtime.model.attention import Documents, Scoring, Table, attention_of, rotated, scoring_of
from shardwright.runtime.model.context import ContextGroup, attention_in_parts, recomputed_attention_in_parts
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.experts import Apart, called, experts
from shardwright.runtime.model.gated import Activation, Weights, by_head, inner, inside
from shardwright.runtime.model.mixers import mixed
from shardwright.runtime.model.parallel import ExpertGroup, TensorGroup, enter, mean_over
from shardwright.runtime.model.products import Products, entered, in_two_steps, left, made_here
from shardwright.spec.layer import Attention, Layer
from shardwright.spec.model import Model

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


# Queries, keys and values head by head, and the gate on the output [micro_batch, positions, heads * width].
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]
LATENT_EPSILON = 1e-6  # of the norms of latents, whatever the config says (transformers 5.23, DeepseekV2RMSNorm)


def norm(x: torch.Tensor, weights: Weights, model: Model, details: Details) -> torch.Tensor:
    """Return LayerNorm or RMSNorm of `x` over the last dimension, with what weights there are."""
    weight, bias = weights.get("weight"), weights.get("bias")
    if weight is not None and model.norm_about_one:
        weight = weight + 1.0
    if model.norm == "layernorm":
        return functional.layer_norm(x, x.shape[-1:], weight, bias, details.norm_epsilon)
    return functional.rms_norm(x, x.shape[-1:], weight, details.norm_epsilon)


def times(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x if scale == 1.0 else x * scale


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
    embedded: torch.Tensor | None = None,
    apart: Apart = called,
) -> torch.Tensor:
    """Return the output of a layer: what attention and the feed-forward block, of which it may have one, add to it, one
    after the other or side by side, with norms where the model has them. Attention stays within `documents`, which are
    of all positions. A block that layers share reads `embedded`, too. `apart` calls what is not to be compiled with the
    rest."""
    core = partial(_recomputed_core if recompute_attention else _core, documents=documents)
    core = partial(apart, core) if context.size > 1 else core
    activation, scale = ACTIVATIONS[model.activation], model.computed.gate_scale
    activation = activation if scale is None else partial(_of_scaled, activation, scale)

    def attention(normed: torch.Tensor) -> torch.Tensor:
        return attend(
            normed, inside(weights, "attention"), layer, model, details, table, tensor, context, products, core
        )

    def mixer(normed: torch.Tensor) -> torch.Tensor:
        assert layer.mixer is not None, "blocks have what mixes tokens"
        scales = model.computed.mixer_scales
        return apart(mixed, normed, inside(weights, "mixer"), layer.mixer, details, tensor, products, scales)

    def mlp(normed: torch.Tensor) -> torch.Tensor:
        if layer.moe is None:
            return feed_forward(normed, inside(weights, "mlp"), activation, tensor, products)
        return experts(
            normed, inside(weights, "moe"), layer.moe, activation, model, details, tensor, group, products, apart
        )

    def before(x: torch.Tensor, name: str) -> torch.Tensor:
        return x if placed in ("after", "sum") else norm(x, inside(weights, f"{name}_norm"), model, details)

    def added(x: torch.Tensor, change: torch.Tensor, name: str) -> torch.Tensor:
        if placed in ("after", "both"):
            change = norm(change, inside(weights, f"{name}_post_norm"), model, details)
        kept, scale = model.computed.residual_scales(layer, feeds=name == "mlp")
        x = times(x, kept) + times(change, scale)
        return norm(x, inside(weights, f"{name}_post_norm"), model, details) if placed == "sum" else x

    if layer.shared is not None:
        assert embedded is not None, "blocks that layers share read what is embedded"
        joined = norm(torch.cat([x, embedded], dim=-1), inside(weights, "joined_norm"), model, details)
        given = mlp(norm(attention(joined), inside(weights, "mlp_norm"), model, details))
        read = x + made_here(given, weights, "square", products)
        return x + mixer(norm(read, inside(weights, "mixer_norm"), model, details))
    placed, mixing = model.computed.placement(layer), _mixing(attention, mixer, layer, model)
    if model.parallel_block:
        normed = before(x, "attention")
        feeding = normed if layer.norms == 1 else before(x, "mlp")
        return added(added(x, mixing(normed), "attention"), mlp(feeding), "mlp")
    for name, block in [("attention", mixing)] * layer.mixes + [("mlp", mlp)] * layer.feeds:
        normed = before(x, name)
        x = added(normed if placed == "stream" else x, block(normed), name)
    return x


def _of_scaled(activation: Activation, scale: float, x: torch.Tensor) -> torch.Tensor:
    return activation(x * scale)


def _mixing(attention: Activation, mixer: Activation, layer: Layer, model: Model) -> Activation:
    """Return what mixes tokens in a layer: attention, another mixer, or both side by side, of which what each reads and
    gives is times its own numbers."""
    if layer.attention is None or layer.mixer is None:
        return attention if layer.mixer is None else mixer
    scales = model.computed.branch_scales or ((1.0, 1.0), (1.0, 1.0))

    def both(normed: torch.Tensor) -> torch.Tensor:
        sides = zip((attention, mixer), scales, strict=True)
        first, second = (times(mix(times(normed, before)), after) for mix, (before, after) in sides)
        return first + second

    return both


def attend(
    x: torch.Tensor,
    weights: Weights,
    layer: Layer,
    model: Model,
    details: Details,
    table: Table,
    tensor: TensorGroup,
    context: ContextGroup,
    products: Products,
    core: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """Return self-attention of `x`; this rank computes its part of the heads."""
    attention = layer.self_attention
    heads = _heads if attention.latent is None else _latent_heads
    query, key, value, gate = heads(x, weights, attention, model, details, table, tensor, products)
    sinks = weights.get("sinks.weight")
    scoring = scoring_of(model, attention, details.rotary, query.shape[1], tensor.rank, sinks, x.device)
    out = core(query, key, value, attention.window, context, scoring).transpose(1, 2).flatten(2)
    if gate is not None:
        of_heads = (gate[..., None] if attention.gate == "head" else by_head(gate, attention.value_head_dim)).sigmoid()
        out = (by_head(out, attention.value_head_dim) * of_heads).flatten(2)
    return _plus(left(out, weights, "out", tensor, products), weights.get("out.bias"))


def _heads(
    x: torch.Tensor,
    weights: Weights,
    attention: Attention,
    model: Model,
    details: Details,
    table: Table,
    tensor: TensorGroup,
    products: Products,
) -> Heads:
    """Return this rank's heads of queries, keys and values, [micro_batch, heads, positions, width], and the gate."""
    computed = model.computed
    parts = ("query", "key", "value", *(("gate",) if attention.gate else ()))
    query, key, value, *gates = entered(x, weights, parts, tensor, products)
    if "query_down.weight" in weights:
        query, key, value = (
            whole + in_two_steps(x, weights, f"{part}_down", (f"{part}_up",), tensor, products)[0]
            for part, whole in zip(parts, (query, key, value), strict=False)
        )
    clip = computed.qkv_clip
    if clip is not None:
        query, key, value = (part.clamp(-clip, clip) for part in (query, key, value))
    key = times(key, computed.key_scale or 1.0)

    def normed(part: torch.Tensor, name: str) -> torch.Tensor:
        return _query_key_norm(part, inside(weights, name), attention, model, details, tensor)

    normed_heads, after = attention.qk_norm, computed.norm_after_rotation
    if normed_heads and not after:
        query, key = normed(query, "query_norm"), normed(key, "key_norm")
    query, key = (by_head(part, attention.head_dim).transpose(1, 2) for part in (query, key))
    if table is not None:
        query, key = (rotated(part, table, interleaved=bool(model.rotary_interleaved)) for part in (query, key))
    if normed_heads and after:
        query = norm(query, inside(weights, "query_norm"), model, details)
        key = norm(key, inside(weights, "key_norm"), model, details)
    return query, key, by_head(value, attention.value_head_dim).transpose(1, 2), gates[0] if gates else None


def _query_key_norm(
    x: torch.Tensor, weights: Weights, attention: Attention, model: Model, details: Details, tensor: TensorGroup
) -> torch.Tensor:
    """Return the norm of queries or keys [micro_batch, positions, this rank's heads * head_dim]."""
    kind = model.computed.query_key_norm
    if kind == "projection":  # RMSNorm over the heads of all ranks
        square = mean_over(x.float().square().mean(dim=-1, keepdim=True), tensor)
        scaled = x.float() * torch.rsqrt(square + details.norm_epsilon)
        return (scaled * weights["weight"]).to(x.dtype)
    heads = by_head(x, attention.head_dim)
    if kind == "each":
        return (norm(heads, {}, model, details) * weights["weight"].view(-1, attention.head_dim)).flatten(2)
    return norm(heads, weights, model, details).flatten(2)


def _latent_heads(
    x: torch.Tensor,
    weights: Weights,
    attention: Attention,
    model: Model,
    details: Details,
    table: Table,
    tensor: TensorGroup,
    products: Products,
) -> Heads:
    """Return the same of multi-head latent attention (arXiv 2405.04434 §2.1). Latents are of this rank's positions;
    all positions enter where they become heads."""
    mla = attention.latent
    assert mla is not None, "this is latent attention"

    def up(latent: torch.Tensor, part: str) -> torch.Tensor:
        normed = functional.rms_norm(latent, latent.shape[-1:], weights[f"{part}_norm.weight"], LATENT_EPSILON)
        return entered(normed, weights, (f"{part}_up",), tensor, products)[0]

    entering = (*(("query",) if mla.query_rank is None else ()), *(("gate",) if attention.gate else ()))
    wide = dict(zip(entering, entered(x, weights, entering, tensor, products), strict=True)) if entering else {}
    query = up(made_here(x, weights, "query_down", products), "query") if mla.query_rank else wide["query"]
    low = made_here(x, weights, "latent_down", products)
    latent, turning = torch.split(low, [mla.kv_rank, mla.rope_head_dim], dim=-1)
    both = by_head(up(latent, "latent"), mla.nope_head_dim + attention.value_head_dim).transpose(1, 2)
    query = by_head(query, attention.head_dim).transpose(1, 2)
    still, query_turning = torch.split(query, [mla.nope_head_dim, mla.rope_head_dim], dim=-1)
    key_still, value = torch.split(both, [mla.nope_head_dim, attention.value_head_dim], dim=-1)

    def turn(part: torch.Tensor) -> torch.Tensor:
        return part if table is None else rotated(part, table, interleaved=model.computed.latent_interleaved)

    key_turned = turn(enter(turning, tensor)[:, None]).expand(-1, key_still.shape[1], -1, -1)
    query = torch.cat([still, turn(query_turning)], dim=-1)
    return query, torch.cat([key_still, key_turned], dim=-1), value, wide.get("gate")


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
    scoring: Scoring,
    documents: Documents | None,
) -> torch.Tensor:
    """Return softmax(scores) v over the positions that a query sees: earlier ones, the last `window` of them where
    there is a window, of the same document where there are documents. All are of this rank's part of the positions."""
    attention = partial(attention_of, window=window, documents=documents, scoring=scoring)
    return (
        attention(query, key, value) if context.size == 1 else attention_in_parts(attention, query, key, value, context)
    )


def _recomputed_core(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: int | None,
    context: ContextGroup,
    scoring: Scoring,
    documents: Documents | None,
) -> torch.Tensor:
    """Return the same, which the backward pass computes again."""
    attention = partial(attention_of, window=window, documents=documents, scoring=scoring)
    if context.size > 1:
        return recomputed_attention_in_parts(attention, query, key, value, context)
    out = checkpoint(attention, query, key, value, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(out, torch.Tensor)
    return out


LayerForward = Callable[..., torch.Tensor]


class _Same(torch.autograd.Function):
    """A weight as another tensor with the same memory. Dynamo takes none whose gradient has another type, and those of
    16-bit weights are in fp32: without this, a layer would fall apart into several graphs."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.data

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def compiled(say: Callable[[str], None] | None = None, **options: Any) -> LayerForward:
    """Return `layer_forward`, compiled with these `options` of torch.compile when it is first called. Where that fails,
    layers run operator by operator, and `say` is told why, once."""
    from torch._dynamo.exc import TorchDynamoException  # two seconds, which ranks that do not compile are spared

    tell = say or (lambda words: print(f"warning: {words}", file=sys.stderr, flush=True))
    fast: list[LayerForward] = [torch.compile(layer_forward, dynamic=False, **options)]
    apart = torch.compiler.disable(called)  # type: ignore[no-untyped-call]

    def run(x: torch.Tensor, weights: Weights, *others: Any, **settings: Any) -> torch.Tensor:
        if not fast:
            return layer_forward(x, weights, *others, **settings)
        same: Any = _Same
        aliases = {name: same.apply(weight) for name, weight in weights.items()}
        try:
            return fast[0](x, aliases, *others, apart=apart, **settings)
        except (TorchDynamoException, ImportError, OSError) as error:
            fast.clear()
            reason = " ".join(str(error).strip().split("\n")[:2])
            tell(f"layers are not compiled and run operator by operator: {type(error).__name__}: {reason}")
            return layer_forward(x, weights, *others, **settings)

    return run
