"""Products with the matrices of a layer, between what ranks gather before them and what they sum after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
from torch.nn import functional

from shardwright.runtime.model.parallel import TensorGroup, collected, collecting, leave, summing

WHOLE = TensorGroup()
Matrix = tuple[torch.Tensor, torch.Tensor | None]
"""A weight [outputs, inputs], and its bias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterProducts:
    """By what the products of adapters are multiplied, and which ranks hold the parts of their matrices."""

    scale: float = 1.0
    tensor: TensorGroup = WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """How layers are multiplied. `enter` takes this rank's positions of a tensor group and returns the products of all
    positions with matrices of which each rank has some rows; `leave` multiplies by one of which each has some columns,
    and returns the sum over the group. `adapters` says how those beside matrices count, where there are any."""

    enter: Callable[[torch.Tensor, Sequence[Matrix], TensorGroup], tuple[torch.Tensor, ...]]
    leave: Callable[[torch.Tensor, torch.Tensor, TensorGroup], torch.Tensor]
    adapters: AdapterProducts = AdapterProducts()


def enter_linear(x: torch.Tensor, matrices: Sequence[Matrix], tensor: TensorGroup) -> tuple[torch.Tensor, ...]:
    """Return the products of all positions of `x` with matrices.

    Under sequence parallelism this rank's positions alone are kept for the backward pass (Korthikanti et al., arXiv
    2205.05198 §4.2.2). It gathers the others again beside the products for the gradient of `x`, and sums this over the
    ranks beside those for the gradients of the weights. Frozen weights have none, and nothing is kept for them.
    """
    if tensor.size == 1:
        return tuple(functional.linear(x, weight, bias) for weight, bias in matrices)
    function: Any = _EnterLinear
    flat = [part for matrix in matrices for part in matrix]
    return cast("tuple[torch.Tensor, ...]", function.apply(x, tensor, *flat))


def leave_linear(x: torch.Tensor, weight: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return the sum over the ranks of the products of their parts of `x` and of a matrix."""
    return leave(functional.linear(x, weight), tensor)


PLAIN = Products(enter=enter_linear, leave=leave_linear)


class _EnterLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, tensor: TensorGroup, *parts: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        weights = [part for part in parts[::2] if part is not None]
        ctx.tensor, ctx.shape = tensor, x.shape
        ctx.save_for_backward(x if any(ctx.needs_input_grad[2::2]) else None, *weights)
        whole = collected(x, tensor)
        return tuple(functional.linear(whole, *pair) for pair in zip(weights, parts[1::2], strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        arriving = None if x is None else collecting(x, ctx.tensor, after=gradients[0])
        rows = [gradient.flatten(0, 1) for gradient in gradients]
        leaving = None
        if ctx.needs_input_grad[0]:
            entering = reduce(torch.add, (row @ weight for row, weight in zip(rows, weights, strict=True)))
            leaving = summing(entering.view(ctx.shape[0], -1, ctx.shape[2]), ctx.tensor)
        whole = None if arriving is None else arriving().flatten(0, 1)
        found: list[torch.Tensor | None] = []
        for number, row in enumerate(rows):
            found.append(row.t() @ whole if whole is not None and ctx.needs_input_grad[2 * number + 2] else None)
            found.append(row.sum(0) if ctx.needs_input_grad[2 * number + 3] else None)
        return leaving and leaving(), None, *found
