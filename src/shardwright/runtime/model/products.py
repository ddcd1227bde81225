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
class Products:
    """How layers are multiplied. `enter` takes this rank's positions of a tensor group and returns the products of all
    positions with matrices of which each rank has some rows; `leave` multiplies by one of which each has some columns,
    and returns the sum over the group."""

    enter: Callable[[torch.Tensor, Sequence[Matrix], TensorGroup], tuple[torch.Tensor, ...]]
    leave: Callable[[torch.Tensor, torch.Tensor, TensorGroup], torch.Tensor]


def enter_linear(x: torch.Tensor, matrices: Sequence[Matrix], tensor: TensorGroup) -> tuple[torch.Tensor, ...]:
    """Return the products of all positions of `x` with matrices.

    Under sequence parallelism this rank's positions alone are kept for the backward pass (Korthikanti et al., arXiv
    2205.05198 §4.2.2). It gathers the others again beside the products for the gradient of `x`, and sums this over the
    ranks beside those for the gradients of the weights.
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
        ctx.tensor = tensor
        ctx.save_for_backward(x, *weights)
        whole = collected(x, tensor)
        return tuple(functional.linear(whole, *pair) for pair in zip(weights, parts[1::2], strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        arriving = collecting(x, ctx.tensor, after=gradients[0])
        rows = [gradient.flatten(0, 1) for gradient in gradients]
        entering = reduce(torch.add, (row @ weight for row, weight in zip(rows, weights, strict=True)))
        leaving = summing(entering.view(x.shape[0], -1, x.shape[2]), ctx.tensor)
        whole = arriving().flatten(0, 1)
        found: list[torch.Tensor | None] = []
        for number, row in enumerate(rows):
            found.append(row.t() @ whole)
            found.append(row.sum(0) if ctx.needs_input_grad[2 * number + 3] else None)
        return leaving(), None, *found
