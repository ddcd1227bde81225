"""The step of a model of the catalogue, without tracing: decoders built as Llama, GPT, Mixtral or Qwen-MoE are."""

from __future__ import annotations

from shardwright.spec.layer import Attention, Layer, Moe
from shardwright.spec.model import Model
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.models.transformers import Dropless, Transformer, language_model

ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu"
}  # fmt: skip
DROPOUT = 0.1  # of GPT-2 and its kin; how much is dropped costs nothing


def training_step(model: Model, *, batch: int, seq_len: int, dtype: str) -> Graph:
    """Return one training step of a model that `other_than` finds nothing in."""
    (layer,) = model.kinds
    attention, mlp, moe = layer.attention, layer.mlp, layer.moe
    assert attention is not None, "a graph has blocks with attention alone"
    dims = Transformer(
        layers=len(model.layers),
        hidden=model.hidden,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_size=attention.head_dim,
        qkv_bias=attention.qkv_bias,
        qk_norm=attention.qk_norm,
        feed_forward=mlp.width if mlp else 0,
        vocabulary=model.vocab,
        causal=True,
        gated=_gated(layer),
        experts=_experts(moe) if moe else None,
        experts_every=1,
        activation=ACTIVATIONS[model.activation],
        dropout=DROPOUT if model.dropout else 0.0,
        tied=model.tied_embeddings,
    )
    return language_model(dims, batch=batch, seq_len=seq_len, dtype=dtype)


def _experts(moe: Moe) -> Dropless:
    return Dropless(
        count=moe.experts,
        chosen=moe.top_k,
        width=moe.expert_width,
        normalised=not moe.pre_softmax,
        shared_width=moe.shared_width,
        shared_gate=moe.shared_gate,
    )


def _gated(layer: Layer) -> bool:
    feed_forward = layer.mlp or layer.moe
    return feed_forward is not None and feed_forward.gated


def other_than(model: Model, seq_len: int) -> str:
    """Return in words what `model` has that its graph here would lack; nothing if the graph is the model's."""
    if model.towers:
        return model.towers[0].noun
    if len(model.kinds) > 1:
        return "layers of several kinds"
    (layer,) = model.kinds
    if layer.mixer is not None or layer.sublayers < 2 or (layer.moe and layer.moe.latent):
        return "blocks of its own"
    if layer.moe and (layer.moe.router_bias or layer.moe.router_groups or layer.moe.router_scaling):
        return "a router of its own"
    particular = model.particular or layer.vector_parameters or layer.norms != 2
    if particular or model.parallel_block or model.embedding_norm or model.norm_about_one:
        return "a forward pass of its own"
    if model.embedding_width or model.head_bias or model.mtp_layers or not model.final_norm:
        return "an embedding or a head of its own"
    assert layer.attention is not None, "what a block with feed-forward and no mixer mixes tokens by"
    return _attention(layer.attention, seq_len) or _habits(model, layer.attention, layer)


def _attention(attention: Attention, seq_len: int) -> str:
    if attention.latent is not None or attention.head_dim != attention.value_head_dim:
        return "attention of its own"
    if attention.gate is not None or attention.sparse is not None:
        return "attention of its own"
    if not attention.causal or (attention.window or seq_len) < seq_len:
        return "attention that is not plainly causal"
    return ""


def _habits(model: Model, attention: Attention, layer: Layer) -> str:
    gated = _gated(layer)
    inside = layer.mlp.bias if layer.mlp else False
    biases = {attention.out_bias, inside, not gated or attention.out_bias}
    llama = ("rmsnorm", "rope", 1.0, {False})
    gpt = ("layernorm", "learned", 1.0, {True})
    if (model.norm, model.position, model.rotary_fraction, biases) != (llama if gated else gpt):
        return "norms, positions or biases of its own"
    if not gated and (attention.qk_norm or not attention.qkv_bias):
        return "norms, positions or biases of its own"
    return "" if model.activation in ACTIVATIONS else f"the activation {model.activation}"
