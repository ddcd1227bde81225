"""Layers of experts: those that take every token, and those of a fixed capacity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from shardwright.synthesis.graph import Ref, Value
from shardwright.synthesis.models.tape import Tape


@dataclass(frozen=True, slots=True, kw_only=True)
class WithCapacity:
    """`count` experts of inner `width`, one a token, each with slots for `factor` times its part of a sequence."""

    count: int
    width: int
    factor: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
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
