"""The inner part of feed-forward blocks and experts, how blocks name their parameters, and heads of a width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from shardwright.runtime.model.parallel import TensorGroup, applied
from shardwright.runtime.model.products import WHOLE, Products, entered, in_two_steps, left
from shardwright.spec.forward_pass import ForwardPass

Weights = Mapping[str, torch.Tensor]
Activation = Callable[[torch.Tensor], torch.Tensor]
Gate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # what becomes of a gate and what it gates


def inside(weights: Weights, block: str) -> dict[str, torch.Tensor]:
    """Return the parameters of one block of a unit, under their names within it."""
    return {name.removeprefix(f"{block}."): value for name, value in weights.items() if name.startswith(f"{block}.")}


def by_head(x: torch.Tensor, width: int) -> torch.Tensor:
    """Return `x` [micro_batch, positions, heads * width] as [micro_batch, positions, heads, width]."""
    return x.reshape(*x.shape[:-1], -1, width)


def inner(
    x: torch.Tensor,
    weights: Weights,
    activation: Activation,
    products: Products,
    before: TensorGroup,
    after: TensorGroup = WHOLE,
) -> torch.Tensor:
    """Return a feed-forward block up to the last bias. `x` has this rank's positions of the tensor group `before`; what
    comes out is summed over that `after`."""
    parts = ("gate", "up") if any(name.startswith("gate.") for name in weights) else ("up",)
    projected = entered(x, weights, parts, before, products)
    if "low_down.weight" in weights:
        added = in_two_steps(x, weights, "low_down", [f"{part}_up" for part in parts], before, products)
        projected = tuple(whole + low for whole, low in zip(projected, added, strict=True))
    middle = gated(*projected, activation) if len(projected) == 2 else activation(*projected)
    return left(middle, weights, "down", after, products)


def clamped_gate(computed: ForwardPass) -> Gate | None:
    """Return the gate of gpt-oss where the model has it: g sigmoid(slope g) (u + 1) of clamped g and u."""
    limit, slope = computed.gate_limit, computed.gate_slope
    if limit is None or slope is None:
        return None

    def gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        below = gate.clamp(max=limit)
        return below * torch.sigmoid(slope * below) * (up.clamp(-limit, limit) + 1.0)

    return gate


def gated(gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return activation(gate) * up; the backward pass computes the activation again."""
    if torch.compiler.is_compiling():  # which decides itself what to compute again
        return activation(gate) * up
    return applied(_Gated, gate, up, activation)


class _Gated(torch.autograd.Function):
    """activation(gate) * up, which keeps these two and computes the activation again, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
        ctx.activation = activation
        ctx.save_for_backward(gate, up)
        return activation(gate) * up

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (gradient,) = gradients
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            gate = gate.detach().requires_grad_()
            active = ctx.activation(gate)
        (into_gate,) = torch.autograd.grad(active, gate, gradient * up)
        return into_gate, active.detach().mul_(gradient), None
