"""Models that the catalogue has not, whose steps a synthesis must handle as well: BERT, ViT, experts of a fixed
capacity.
"""

from __future__ import annotations

import math

from shardwright.records import record
from shardwright.synthesis.graph import Argument, Graph, Ref
from shardwright.synthesis.models.tape import Tape
from shardwright.synthesis.models.transformers import Transformer, dropped, layers

BERT_BASE = Transformer(pre_norm=False)
GPT2 = Transformer(vocabulary=50257, causal=True)
LLAMA_1B = Transformer(
    layers=16, hidden=2048, heads=32, kv_heads=8, feed_forward=8192, vocabulary=128256, causal=True, gated=True,
    activation="silu", dropout=0.0,
)  # fmt: skip


def vision(dims: Transformer, *, batch: int, image: int = 224, patch: int = 16, classes: int = 1000) -> Graph:
    """Return a step of a vision transformer; its class is read from the first of its tokens, the mean of patches
    taking the part of the class token where their number is given."""
    tape = Tape()
    pixels = tape.leaf("input", "images", (batch, 3, image, image))
    labels = tape.leaf("input", "labels", (batch,), "int64")
    side = image // patch
    x = convolution(tape, pixels, "patches", dims.hidden, patch, stride=patch)
    x = tape.permute(tape.view(x, batch, dims.hidden, side * side), 0, 2, 1)
    x = _class_token(tape, x, batch, side * side, dims.hidden)
    x = tape.add(x, tape.parameter("positions", side * side + 1, dims.hidden))
    x = layers(tape, dropped(tape, x, dims), dims)
    x = select(tape, tape.norm(x, "norm"), 1, 0)
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


@record
class WithCapacity:
    """`count` experts of inner `width`, one a token, each with slots for `factor` times its part of a sequence."""

    count: int
    width: int
    factor: float = 2.0

    def add(self, tape: Tape, x: Ref, name: str, activation: str) -> Ref:
        """Add experts with a capacity for each sequence: tokens beyond it are dropped. Tokens are sent to their slots and
        back by products with masks, as in GShard (arXiv 2006.16668), one expert a token."""
        batch, length, hidden = tape.shape(x)
        count = self.count
        slots = math.ceil(self.factor * length / count)
        chances = tape.softmax(tape.linear(x, f"{name}.gate", count, bias=False))
        mask, slot = _slots(tape, chances, slots)
        masked = tape.view(tape.multiply(chances, mask), batch, length, count, 1)
        weight = tape.multiply(tape.expand(masked, batch, length, count, slots), slot)
        combine = tape.view(weight, batch, length, count * slots)
        dispatch = tape.op("view", (slot, (batch, length, count * slots)), (batch, length, count * slots))
        turned = tape.op("permute", (dispatch, (0, 2, 1)), (batch, count * slots, length))
        sent = tape.view(bmm(tape, turned, x), batch, count, slots, hidden)
        inner = tape.view(tape.permute(sent, 1, 0, 2, 3), count, batch * slots, hidden)
        wide = tape.unary("relu", bmm(tape, inner, tape.parameter(f"{name}.up", count, hidden, self.width)))
        out = bmm(tape, wide, tape.parameter(f"{name}.down", count, self.width, hidden))
        back = tape.permute(tape.view(out, count, batch, slots, hidden), 1, 0, 2, 3)
        return bmm(tape, combine, tape.view(back, batch, count * slots, hidden))


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


def select(tape: Tape, x: Ref, dim: int, index: int) -> Ref:
    shape = tape.shape(x)
    made = tape.op("select.int", (x, dim, index), shape[:dim] + shape[dim + 1 :])
    return tape.back(made, lambda g: tape.give(x, tape.op("select_backward", (g, shape, dim, index), shape)))


def bmm(tape: Tape, x: Ref, y: Ref) -> Ref:
    (b, m, k), n = tape.shape(x), tape.shape(y)[2]
    made = tape.op("bmm", (x, y), (b, m, n))

    def rule(g: Ref) -> None:
        tape.give(x, tape.op("bmm", (g, tape.op("transpose.int", (y, 1, 2), (b, n, k))), (b, m, k)))
        tape.give(y, tape.op("bmm", (tape.op("transpose.int", (x, 1, 2), (b, k, m)), g), (b, k, n)))

    return tape.back(made, rule)


def convolution(tape: Tape, x: Ref, name: str, channels: int, kernel: int, *, stride: int = 1, padding: int = 0) -> Ref:
    batch, depth, *image = tape.shape(x)
    w = tape.parameter(f"{name}.weight", channels, depth, kernel, kernel)
    b = tape.parameter(f"{name}.bias", channels)
    out = (batch, channels, *((size + 2 * padding - kernel) // stride + 1 for size in image))
    rest: tuple[Argument, ...] = ((stride, stride), (padding, padding), (1, 1), False, (0, 0), 1)
    made = tape.op("convolution", (x, w, b, *rest), out)
    needed = x not in tape.leaves["input"].values()

    def rule(g: Ref) -> None:
        args: tuple[Argument, ...] = (g, x, w, (channels,), *rest, (needed, True, True))
        dx = tape.op("convolution_backward", args, tape.shape(x) if needed else (0,), tape.shape(w), (channels,))
        if needed:
            tape.give(x, dx)
        tape.give(w, Ref(dx.node, 1))
        tape.give(b, Ref(dx.node, 2))

    return tape.back(made, rule)
