"""BERT, GPT-2, Llama and ViT, with feed-forward layers or experts: those that take every token, and those of a fixed
capacity.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from shardwright.records import record
from shardwright.synthesis.graph import Graph, Ref, Value
from shardwright.synthesis.models.tape import Tape


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


BERT_BASE = Transformer(pre_norm=False)
GPT2 = Transformer(vocabulary=50257, causal=True)
LLAMA_1B = Transformer(
    layers=16, hidden=2048, heads=32, kv_heads=8, feed_forward=8192, vocabulary=128256, causal=True, gated=True,
    activation="silu", dropout=0.0,
)  # fmt: skip


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
    x = _drop(tape, x, dims)
    x = _layers(tape, x, dims)
    if dims.pre_norm:
        x = tape.norm(x, "norm", rms=dims.gated)
    logits = tape.linear(x, "head", dims.vocabulary, bias=False, weight=table if dims.tied else None)
    flat = tape.view(logits, batch * seq_len, dims.vocabulary)
    return tape.graph(tape.cross_entropy(flat, labels))


def vision(dims: Transformer, *, batch: int, image: int = 224, patch: int = 16, classes: int = 1000) -> Graph:
    """Return a step of a vision transformer; its class is read from the first of its tokens, the mean of patches
    taking the part of the class token where their number is given."""
    tape = Tape()
    pixels = tape.leaf("input", "images", (batch, 3, image, image))
    labels = tape.leaf("input", "labels", (batch,), "int64")
    side = image // patch
    x = tape.convolution(pixels, "patches", dims.hidden, patch, stride=patch)
    x = tape.permute(tape.view(x, batch, dims.hidden, side * side), 0, 2, 1)
    x = _class_token(tape, x, batch, side * side, dims.hidden)
    x = tape.add(x, tape.parameter("positions", side * side + 1, dims.hidden))
    x = _layers(tape, _drop(tape, x, dims), dims)
    x = tape.select(tape.norm(x, "norm"), 1, 0)
    return tape.graph(tape.cross_entropy(tape.linear(x, "head", classes), labels))


def _class_token(tape: Tape, x: Ref, batch: int, patches: int, hidden: int) -> Ref:
    token = tape.parameter("class_token", 1, 1, hidden)
    wide = tape.op("expand", (token, (batch, 1, hidden)), (batch, 1, hidden))
    made = tape.op("cat", ((wide, x), 1), (batch, patches + 1, hidden))

    def rule(g: Ref) -> None:
        first = tape.op("slice.Tensor", (g, 1, 0, 1), (batch, 1, hidden))
        tape.give(token, tape.op("sum.dim_IntList", (first, (0,), True), (1, 1, hidden)))
        tape.give(x, tape.op("slice.Tensor", (g, 1, 1, patches + 1), (batch, patches, hidden)))

    return tape.back(made, rule)


def _layers(tape: Tape, x: Ref, dims: Transformer) -> Ref:
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
            made = with_experts(tape, inner, f"{name}.{part}", experts, dims.activation)
        else:
            made = _mlp(tape, inner, f"{name}.{part}", dims)
        x = tape.add(x, _drop(tape, made, dims))
        if not dims.pre_norm:
            x = tape.norm(x, f"{name}.{part}.norm")
    return x


def _drop(tape: Tape, x: Ref, dims: Transformer) -> Ref:
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
class WithCapacity:
    """`count` experts of inner `width`, one a token, each with slots for `factor` times its part of a sequence."""

    count: int
    width: int
    factor: float = 2.0


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


Experts: TypeAlias = WithCapacity | Dropless


def with_experts(tape: Tape, x: Ref, name: str, experts: Experts, activation: str) -> Ref:
    """Add a layer of experts for x [batch, length, hidden]."""
    if isinstance(experts, WithCapacity):
        return _with_capacity(tape, x, name, experts)
    return _dropless(tape, x, name, experts, activation)


def gated(tape: Tape, x: Ref, name: str, width: int, activation: str) -> Ref:
    """Add down(activation(gate(x)) · up(x)) of inner `width`."""
    gate = tape.unary(activation, tape.linear(x, f"{name}.gate", width, bias=False))
    wide = tape.multiply(gate, tape.linear(x, f"{name}.up", width, bias=False))
    return tape.linear(wide, f"{name}.down", tape.shape(x)[-1], bias=False)


def _dropless(tape: Tape, x: Ref, name: str, experts: Dropless, activation: str) -> Ref:
    """Add experts as `transformers` has them: a row for each token and each of its experts."""
    *lead, hidden = tape.shape(x)
    tokens, chosen, width = math.prod(lead), experts.chosen, experts.width
    flat = tape.view(x, tokens, hidden)
    shares, expert = _top(tape, tape.softmax(tape.linear(flat, f"{name}.router", experts.count, bias=False)), chosen)
    shares = _normalised(tape, shares) if experts.normalised else shares
    expert = tape.op("view", (expert, (tokens * chosen,)), (tokens * chosen,), dtype="int64")
    copies = tape.expand(tape.view(flat, tokens, 1, hidden), tokens, chosen, hidden)
    rows = tape.view(copies, tokens * chosen, hidden)
    both = _grouped_mm(tape, rows, tape.parameter(f"{name}.gate_up", experts.count, 2 * width, hidden), expert)
    gate, up = tape.halves(both)
    wide = tape.multiply(tape.unary(activation, gate), up)
    out = _grouped_mm(tape, wide, tape.parameter(f"{name}.down", experts.count, hidden, width), expert)
    weighted = tape.multiply(tape.view(out, tokens, chosen, hidden), tape.view(shares, tokens, chosen, 1))
    made = tape.sum(weighted, 1)
    if experts.shared_width:
        made = tape.add(made, _shared(tape, flat, f"{name}.shared", experts, activation))
    return tape.view(made, *lead, hidden)


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


def _with_capacity(tape: Tape, x: Ref, name: str, experts: WithCapacity) -> Ref:
    """Add experts with a capacity for each sequence: tokens beyond it are dropped. Tokens are sent to their slots and
    back by products with masks, as in GShard (arXiv 2006.16668), one expert a token."""
    batch, length, hidden = tape.shape(x)
    count = experts.count
    slots = math.ceil(experts.factor * length / count)
    chances = tape.softmax(tape.linear(x, f"{name}.gate", count, bias=False))
    mask, slot = _slots(tape, chances, slots)
    masked = tape.view(tape.multiply(chances, mask), batch, length, count, 1)
    weight = tape.multiply(tape.expand(masked, batch, length, count, slots), slot)
    combine = tape.view(weight, batch, length, count * slots)
    dispatch = tape.op("view", (slot, (batch, length, count * slots)), (batch, length, count * slots))
    turned = tape.op("permute", (dispatch, (0, 2, 1)), (batch, count * slots, length))
    sent = tape.view(tape.bmm(turned, x), batch, count, slots, hidden)
    inner = tape.view(tape.permute(sent, 1, 0, 2, 3), count, batch * slots, hidden)
    wide = tape.unary("relu", tape.bmm(inner, tape.parameter(f"{name}.up", count, hidden, experts.width)))
    out = tape.bmm(wide, tape.parameter(f"{name}.down", count, experts.width, hidden))
    back = tape.permute(tape.view(out, count, batch, slots, hidden), 1, 0, 2, 3)
    return tape.bmm(combine, tape.view(back, batch, count * slots, hidden))


def _slots(tape: Tape, chances: Ref, slots: int) -> tuple[Ref, Ref]:
    """Return which expert each token goes to [batch, length, experts], and which slot of it [.., slots], as masks."""
    batch, length, count = shape = tape.shape(chances)
    best = tape.op("argmax", (chances, -1, True), (batch, length, 1), dtype="int64")
    names = tape.op("arange", (count,), (count,), dtype="int64")
    chosen = tape.op("eq.Tensor", (best, names), shape, dtype="bool")
    mask = tape.op("_to_copy", (chosen,), shape)
    place = tape.op("cumsum", (mask, 1), shape)
    wide = tape.op("unsqueeze", (tape.op("mul.Tensor", (place, mask), shape), 3), (*shape, 1))
    numbers = tape.op("arange.start", (1, slots + 1), (slots,), dtype="int64")
    there = tape.op("eq.Tensor", (wide, numbers), (*shape, slots), dtype="bool")
    return mask, tape.op("_to_copy", (there,), (*shape, slots))
