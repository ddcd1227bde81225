"""Products in fp8: inputs and weights in e4m3, gradients in e5m2 (Micikevicius et al., arXiv 2209.05433).

A tensor has one scale, which brings its largest value to the largest number of the format, taken anew in every pass.
Ranks that hold parts of a sequence agree on it and gather 8 bits an element. What a product takes in is kept in 8 bits
for the backward pass; weights are brought to 8 bits in each pass. Sums are in fp32, results in the precision of `x`.

(torchao's float8 training computes the same of modules, and keeps 16-bit inputs.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, cast

import torch
from torch.nn import functional

from shardwright.records import record
from shardwright.runtime.model.parallel import TensorGroup, all_reduced, collecting, summed, summing
from shardwright.runtime.model.products import WHOLE, Matrix, Products

SMALLEST = 1e-12  # of a tensor's largest value, so that zeros have a scale


@record
class Scaled:
    """The tensor `values` * `scale`, of which `values` are in 8 bits."""

    values: torch.Tensor
    scale: torch.Tensor

    @property
    def rows(self) -> Scaled:
        """It as a matrix, whose columns are the last dimension."""
        return Scaled(values=self.values.flatten(0, -2), scale=self.scale)

    @property
    def transposed(self) -> Scaled:
        return Scaled(values=self.values.t().contiguous(), scale=self.scale)


def scaled(x: torch.Tensor, kind: torch.dtype, tensor: TensorGroup = WHOLE) -> Scaled:
    """Return `x` in an 8-bit format, all positions of a sequence of which the ranks have parts."""
    largest = x.abs().amax().float()
    if tensor.sharded:
        largest = all_reduced(largest, tensor, maximum=True)
    scale = largest.clamp(min=SMALLEST) / torch.finfo(kind).max
    values = (x.float() / scale).to(kind)
    return Scaled(values=values.contiguous(), scale=scale)  # gradients may come transposed


def gathered(x: Scaled, tensor: TensorGroup) -> Scaled:
    """Return all positions of what a rank has its own of."""
    return gathering(x, tensor)()


def gathering(x: Scaled, tensor: TensorGroup, after: torch.Tensor | None = None) -> Callable[[], Scaled]:
    """Begin to gather all positions of what a rank has its own of, in the backward pass `after` a gradient; what is
    returned waits for them."""
    arriving = collecting(x.values.view(torch.uint8), tensor, after)  # not all back ends send 8-bit floating point
    return lambda: Scaled(values=arriving().view(x.values.dtype), scale=x.scale)


def product(x: Scaled, matrix: Scaled, dtype: torch.dtype) -> torch.Tensor:
    """Return `x` [m, k] times the transpose of `matrix` [n, k]: both in the order that tensor cores read."""
    one = functional.ScalingType.TensorWise
    return functional.scaled_mm(
        x.values, matrix.values.t(), x.scale, one, matrix.scale, one, output_dtype=dtype
    )  # fmt: skip


def _enter(x: torch.Tensor, matrices: Sequence[Matrix], tensor: TensorGroup) -> tuple[torch.Tensor, ...]:
    found = _apply(x, tensor, WHOLE, [weight for weight, _ in matrices])
    return tuple(y if bias is None else y + bias for y, (_, bias) in zip(found, matrices, strict=True))


def _leave(x: torch.Tensor, weight: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    return _apply(x, WHOLE, tensor, [weight])[0]


FP8 = Products(enter=_enter, leave=_leave)


def _apply(
    x: torch.Tensor, before: TensorGroup, after: TensorGroup, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    function: Any = _Linear
    return cast("tuple[torch.Tensor, ...]", function.apply(x, before, after, *weights))


class _Linear(torch.autograd.Function):
    """Products of `x`, gathered over one group, with weights; each is summed over another group."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, before: TensorGroup, after: TensorGroup, *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        own = scaled(x, torch.float8_e4m3fn, before)
        ctx.before, ctx.after, ctx.shape = before, after, x.shape
        trained = any(ctx.needs_input_grad[3:])
        ctx.save_for_backward(*((own.values, own.scale) if trained else (None, None)), *weights)
        whole = gathered(own, before)
        products = [product(whole.rows, scaled(weight, torch.float8_e4m3fn), x.dtype) for weight in weights]
        return tuple(summed(y.view(*whole.values.shape[:-1], -1), after) for y in products)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, scale, *weights = ctx.saved_tensors
        arriving = None
        if values is not None:
            arriving = gathering(Scaled(values=values, scale=scale), ctx.before, after=gradients[0])
        rows = [gathered(scaled(gradient, torch.float8_e5m2, ctx.after), ctx.after).rows for gradient in gradients]
        entering = [
            product(row, scaled(weight, torch.float8_e4m3fn).transposed, gradient.dtype)
            for row, weight, gradient in zip(rows, weights, gradients, strict=True)
        ]
        leaving = summing(reduce(torch.add, entering).view(ctx.shape[0], -1, *ctx.shape[2:]), ctx.before)
        if arriving is None:
            return leaving(), None, None, *[None] * len(weights)
        inputs = arriving().rows.transposed
        found = [product(row.transposed, inputs, gradients[0].dtype) for row in rows]
        return leaving(), None, None, *found
