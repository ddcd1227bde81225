"""Language models as BERT, GPT-2, Llama and Mixtral are, with feed-forward layers, or experts that take every token;
and the steps of models of the catalogue, decoders built as Llama, GPT, Mixtral or Qwen-MoE are, without tracing."""

from __future__ import annotations

import math
from typing import Protocol

from shardwright.records import record
from shardwright.spec.layer import Attention, Layer, Moe
from shardwright.spec.model import Model
from shardwright.synthesis.graph import Graph, Ref, Value
from shardwright.synthesis.models.tape import Tape


class Experts(Protocol):
    """What experts are in place of a feed-forward layer."""

    def add(self, tape: Tape, x: Ref, name: str, activation: str) -> Ref:
        """Add them for x [batch, length, hidden]."""
        ...


@record
class Transformer:
    """Dimensions of a transformer. Every `experts_every`th layer has `experts`, if there are any.

    With `kv_heads`, queries, keys and values have a projection each, of heads of `head_size` (their part of the hidden
    width, if 0). `gated` stands for all of Llama's habits: RMS norms, rotary positions, no biases but `qkv_bias`;
    `qk_norm` adds an RMS norm of every head's queries and keys.
    """

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    kv_heads: int = 0
    head_size: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False
    feed_forward: int = 3072
    vocabulary: int = 30522
    causal: bool = False
    gated: bool = False
    activation: str = "gelu"
    pre_norm: bool = True
    dropout: float = 0.1
    tied: bool = True
    experts: Experts | None = None
    experts_every: int = 2


ANGLES = ("rotary.cos", "rotary.sin")


def language_model(dims: Transformer, *, batch: int, seq_len: int, dtype: str = "float32") -> Graph:
    """Return a step of a language model: every position predicts a token.

    Cosines and sines of rotary positions are buffers [positions, head size].
    """
    tape = Tape(dtype)
    tokens = tape.leaf("input", "tokens", (batch, seq_len), "int64")
    labels = tape.leaf("input", "labels", (batch * seq_len,), "int64")
    table = tape.parameter("embedding.weight", dims.vocabulary, dims.hidden)
    x = tape.embedding(tokens, table)
    if dims.gated:
        for word in ANGLES:
            tape.leaf("buffer", word, (seq_len, dims.head_size or dims.hidden // dims.heads))
    else:
        x = tape.add(x, tape.parameter("positions", seq_len, dims.hidden))
    if not dims.pre_norm:
        x = tape.norm(x, "embedding.norm")
    x = dropped(tape, x, dims)
    x = layers(tape, x, dims)
    if dims.pre_norm:
        x = tape.norm(x, "norm", rms=dims.gated)
    logits = tape.linear(x, "head", dims.vocabulary, bias=False, weight=table if dims.tied else None)
    return tape.graph(tape.cross_entropy(tape.view(logits, batch * seq_len, dims.vocabulary), labels))


def layers(tape: Tape, x: Ref, dims: Transformer) -> Ref:
    """Add the layers. Those with experts and those without take turns, so a block is one of each."""
    every = dims.experts_every if dims.experts else 1
    for number in range(0, dims.layers, every):
        with tape.block("layers"):
            for inside in range(number, number + every):
                experts = dims.experts if inside % every == every - 1 else None
                x = _layer(tape, x, f"layers.{inside}", dims, experts)
    return x


def _layer(tape: Tape, x: Ref, name: str, dims: Transformer, experts: Experts | None) -> Ref:
    for part in ("attention", "experts" if experts else "mlp"):
        inner = tape.norm(x, f"{name}.{part}.norm", rms=dims.gated) if dims.pre_norm else x
        if part == "attention":
            made = _attention(tape, inner, f"{name}.{part}", dims)
        elif experts:
            made = experts.add(tape, inner, f"{name}.{part}", dims.activation)
        else:
            made = _mlp(tape, inner, f"{name}.{part}", dims)
        x = tape.add(x, dropped(tape, made, dims))
        if not dims.pre_norm:
            x = tape.norm(x, f"{name}.{part}.norm")
    return x


def dropped(tape: Tape, x: Ref, dims: Transformer) -> Ref:
    return tape.dropout(x, dims.dropout) if dims.dropout else x


def _attention(tape: Tape, x: Ref, name: str, dims: Transformer) -> Ref:
    batch, length, hidden = tape.shape(x)
    size = dims.head_size or hidden // dims.heads
    if dims.kv_heads:
        q, k, v = (
            _heads(tape, tape.linear(x, f"{name}.{word}", heads * size, bias=dims.qkv_bias), heads, norm)
            for word, heads, norm in (
                ("q", dims.heads, f"{name}.q_norm" if dims.qk_norm else ""),
                ("k", dims.kv_heads, f"{name}.k_norm" if dims.qk_norm else ""),
                ("v", dims.kv_heads, ""),
            )
        )
    else:
        fused = tape.linear(x, f"{name}.qkv", 3 * hidden)
        q, k, v = tape.unbind(tape.permute(tape.view(fused, batch, length, 3, dims.heads, size), 2, 0, 3, 1, 4))
    if dims.gated:
        cos, sin = (tape.leaves["buffer"][word] for word in ANGLES)
        q, k = tape.rotated(q, cos, sin), tape.rotated(k, cos, sin)
    out = tape.attention(q, k, v, causal=dims.causal)
    flat = tape.view(tape.permute(out, 0, 2, 1, 3), batch, length, dims.heads * size)
    return tape.linear(flat, f"{name}.out", hidden, bias=not dims.gated)


def _heads(tape: Tape, x: Ref, heads: int, norm: str) -> Ref:
    """Return x [batch, heads, positions, size], each head normed where `norm` names one."""
    batch, length, width = tape.shape(x)
    apart = tape.view(x, batch, length, heads, width // heads)
    return tape.permute(tape.norm(apart, norm, rms=True) if norm else apart, 0, 2, 1, 3)


def _mlp(tape: Tape, x: Ref, name: str, dims: Transformer) -> Ref:
    hidden = tape.shape(x)[-1]
    if dims.gated:
        return gated(tape, x, name, dims.feed_forward, dims.activation)
    return tape.linear(
        tape.unary(dims.activation, tape.linear(x, f"{name}.up", dims.feed_forward)), f"{name}.down", hidden
    )


@record
class Dropless:
    """`count` gated experts of inner `width`, `chosen` a token, that drop no token (Mixtral, Qwen-MoE). The weights of
    those chosen are made to sum to one if `normalised`. Every token visits the shared expert of `shared_width`, if
    there is one, with a learned weight if `shared_gate`."""

    count: int
    chosen: int
    width: int
    normalised: bool
    shared_width: int = 0
    shared_gate: bool = False

    def add(self, tape: Tape, x: Ref, name: str, activation: str) -> Ref:
        """Add experts as `transformers` has them: a row for each token and each of its self."""
        *lead, hidden = tape.shape(x)
        tokens, chosen, width = math.prod(lead), self.chosen, self.width
        flat = tape.view(x, tokens, hidden)
        shares, expert = _top(tape, tape.softmax(tape.linear(flat, f"{name}.router", self.count, bias=False)), chosen)
        shares = _normalised(tape, shares) if self.normalised else shares
        expert = tape.op("view", (expert, (tokens * chosen,)), (tokens * chosen,), dtype="int64")
        copies = tape.expand(tape.view(flat, tokens, 1, hidden), tokens, chosen, hidden)
        rows = tape.view(copies, tokens * chosen, hidden)
        both = _grouped_mm(tape, rows, tape.parameter(f"{name}.gate_up", self.count, 2 * width, hidden), expert)
        gate, up = tape.halves(both)
        wide = tape.multiply(tape.unary(activation, gate), up)
        out = _grouped_mm(tape, wide, tape.parameter(f"{name}.down", self.count, hidden, width), expert)
        weighted = tape.multiply(tape.view(out, tokens, chosen, hidden), tape.view(shares, tokens, chosen, 1))
        made = tape.sum(weighted, 1)
        if self.shared_width:
            made = tape.add(made, _shared(tape, flat, f"{name}.shared", self, activation))
        return tape.view(made, *lead, hidden)


def gated(tape: Tape, x: Ref, name: str, width: int, activation: str) -> Ref:
    """Add down(activation(gate(x)) · up(x)) of inner `width`."""
    gate = tape.unary(activation, tape.linear(x, f"{name}.gate", width, bias=False))
    wide = tape.multiply(gate, tape.linear(x, f"{name}.up", width, bias=False))
    return tape.linear(wide, f"{name}.down", tape.shape(x)[-1], bias=False)


def _shared(tape: Tape, x: Ref, name: str, experts: Dropless, activation: str) -> Ref:
    made = gated(tape, x, name, experts.shared_width, activation)
    if not experts.shared_gate:
        return made
    return tape.multiply(made, tape.unary("sigmoid", tape.linear(x, f"{name}.weight", 1, bias=False)))


def _grouped_mm(tape: Tape, x: Ref, w: Ref, expert: Ref) -> Ref:
    """Add the product of each row of x [rows, k] with its expert's matrix, of w [experts, n, k]."""
    (rows, depth), (experts, width, _) = tape.shape(x), tape.shape(w)
    turned = tape.op("permute", (w, (0, 2, 1)), (experts, depth, width))
    made = tape.op("grouped_mm", (x, turned, expert), (rows, width))

    def rule(g: Ref) -> None:
        tape.give(x, tape.op("grouped_mm", (g, w, expert), (rows, depth)))
        dw = tape.op("grouped_mm_weight", (x, g, expert, experts), (experts, depth, width))
        tape.give(w, tape.op("permute", (dw, (0, 2, 1)), tape.shape(w)))

    return tape.back(made, rule)


def _top(tape: Tape, x: Ref, count: int) -> tuple[Ref, Ref]:
    """Return the largest of each row of x [rows, columns], [rows, count], and their columns."""
    shape = tape.shape(x)
    best = (shape[0], count)
    made = tape.record("topk", (x, count), Value(best, tape.dtype), Value(best, "int64"))

    def rule(g: Ref) -> None:
        zeros = tape.record("full", (shape, 0), Value(shape, tape.dtype), kwargs={"dtype": tape.dtype})
        tape.give(x, tape.op("scatter.src", (zeros, 1, Ref(made.node, 1), g), shape))

    return tape.back(made, rule), Ref(made.node, 1)


def _normalised(tape: Tape, x: Ref) -> Ref:
    """Divide each row of x [rows, columns] by its sum s: dx = (g - Σ g y) / s."""
    shape = tape.shape(x)
    total = tape.op("sum.dim_IntList", (x, (1,), True), (shape[0], 1))
    made = tape.op("div.Tensor", (x, total), shape)

    def rule(g: Ref) -> None:
        along = tape.op("mul.Tensor", (g, made), shape)
        less = tape.op("sub.Tensor", (g, tape.op("sum.dim_IntList", (along, (1,), True), (shape[0], 1))), shape)
        tape.give(x, tape.op("div.Tensor", (less, total), shape))

    return tape.back(made, rule)


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
    return _described_attention(layer.attention, seq_len) or _habits(model, layer.attention, layer)


def _described_attention(attention: Attention, seq_len: int) -> str:
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
