"""Products with the matrices of a layer, between what ranks gather before them and what they sum after them, with
adapters beside frozen ones (LoRA, arXiv 2106.09685; DoRA, arXiv 2402.09353), and in fp8: inputs and weights in e4m3,
gradients in e5m2 (Micikevicius et al., arXiv 2209.05433).

With A [r, n] and B [m, r] beside a matrix W [m, n] the product is that with W + (α/r) B A. Under DoRA each row of this
sum is brought to a length of its own, a parameter [m]; the length that it had counts as a constant (§4.3 there), as in
PEFT. Between the products with A and B the tensor-parallel ranks exchange r numbers a token: those of all positions
where each has some rows of W, sums where each has some columns. A or B that is whole on every rank sees the positions
of its rank under sequence parallelism, as norms do.

In fp8 a tensor has one scale, which brings its largest value to the largest number of the format, taken anew in every
pass. Ranks that hold parts of a sequence agree on it and gather 8 bits an element. What a product takes in is kept in 8
bits for the backward pass; weights are brought to 8 bits in each pass. Sums are in fp32, results in the precision of
`x`. (torchao's float8 training computes the same of modules, and keeps 16-bit inputs.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, cast

import torch
from torch.nn import functional

from shardwright.records import record
from shardwright.runtime.model.nf4 import is_packed, linear, wide
from shardwright.runtime.model.parallel import (
    TensorGroup,
    all_reduced,
    applied,
    collected,
    collecting,
    enter,
    leave,
    summed,
    summing,
)
from shardwright.runtime.model.parameters import DOWN, LENGTHS, PACKED, UP

WHOLE = TensorGroup()
# A weight [outputs, inputs], or the bytes that it is kept in, and its bias.
Matrix = tuple[torch.Tensor, torch.Tensor | None]

Weights = Mapping[str, torch.Tensor]

Later = list[Callable[[], None]]  # what a backward pass leaves to be done, in the order in which it came to it


@record
class AdapterProducts:
    """By what the products of adapters are multiplied, and which ranks hold the parts of their matrices."""

    scale: float = 1.0
    tensor: TensorGroup = WHOLE


@record
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
    if tensor.size == 1 or any(is_packed(weight) for weight, _ in matrices):
        whole = enter(x, tensor)
        return tuple(linear(whole, weight, bias) for weight, bias in matrices)
    return _entered(None, x, matrices, tensor)


def _entered(
    later: Later | None, x: torch.Tensor, matrices: Sequence[Matrix], tensor: TensorGroup
) -> tuple[torch.Tensor, ...]:
    function: Any = _EnterLinear
    flat = [part for matrix in matrices for part in matrix]
    return cast("tuple[torch.Tensor, ...]", function.apply(x, tensor, later, *flat))


def leave_linear(x: torch.Tensor, weight: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return the sum over the ranks of the products of their parts of `x` and of a matrix."""
    return leave(linear(x, weight), tensor)


PLAIN = Products(enter=enter_linear, leave=leave_linear)


def putting_off(later: Later) -> Products:
    """Return plain products whose backward pass computes the gradients of `x` alone, and leaves it to `later` to add
    those of the weights to what these have (zero bubble, arXiv 2401.10241)."""

    def leaving(x: torch.Tensor, weight: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
        return leave(_entered(later, x, [(weight, None)], WHOLE)[0], tensor)

    return Products(enter=partial(_entered, later), leave=leaving)


class _EnterLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, tensor: TensorGroup, later: Later | None, *parts: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        weights = [part for part in parts[::2] if part is not None]
        ctx.tensor, ctx.shape, ctx.later = tensor, x.shape, later
        ctx.save_for_backward(x if any(ctx.needs_input_grad[3::2]) else None, *weights)
        whole = collected(x, tensor)
        return tuple(functional.linear(whole, *pair) for pair in zip(weights, parts[1::2], strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        trained, biased = ctx.needs_input_grad[3::2], ctx.needs_input_grad[4::2]
        now = x is not None and ctx.later is None
        arriving = collecting(x, ctx.tensor, after=gradients[0]) if now else None
        rows = [gradient.flatten(0, 1) for gradient in gradients]
        leaving = None
        if ctx.needs_input_grad[0]:
            entering = reduce(torch.add, (row @ weight for row, weight in zip(rows, weights, strict=True)))
            leaving = summing(entering.view(ctx.shape[0], -1, ctx.shape[2]), ctx.tensor)
        whole = None if arriving is None else arriving().flatten(0, 1)
        if x is not None and ctx.later is not None:
            wanted = [pair for pair, given in zip(zip(weights, rows, strict=True), trained, strict=True) if given]
            ctx.later.append(partial(_add_gradients, x, ctx.tensor, wanted))
        of_parts: list[torch.Tensor | None] = []
        for row, of_weight, of_bias in zip(rows, trained, biased, strict=True):
            of_parts.append(row.t() @ whole if whole is not None and of_weight else None)
            of_parts.append(row.sum(0) if of_bias else None)
        return leaving and leaving(), None, None, *of_parts


@torch.no_grad()
def _add_gradients(x: torch.Tensor, tensor: TensorGroup, wanted: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Add to the gradients of weights those of their products with all positions of `x`, whose own gradients are given
    in rows."""
    whole = collected(x, tensor).flatten(0, 1)
    for weight, row in wanted:
        assert weight.grad is not None, "a parameter has a gradient from the beginning"
        weight.grad.add_(row.t() @ whole)


def entered(
    x: torch.Tensor, weights: Weights, parts: Sequence[str], tensor: TensorGroup, products: Products
) -> tuple[torch.Tensor, ...]:
    """Return the products of all positions of `x`, of which a rank of a group has its own, with the matrices of some
    parts of a block, of which each rank has some rows, and their biases."""
    having = [part for part in parts if f"{part}.{UP}" in weights]
    biases = {part: weights.get(f"{part}.bias") for part in parts}
    matrices = [(_matrix(weights, part), None if part in having else biases[part]) for part in parts]
    outputs = dict(zip(parts, products.enter(x, matrices, tensor), strict=True))
    if having:
        low = functional.linear(x, torch.cat([weights[f"{part}.{DOWN}"] for part in having]))
        ranks = [weights[f"{part}.{UP}"].shape[1] for part in having]
        for part, low_part in zip(having, torch.split(enter(low, tensor), ranks, dim=-1), strict=True):
            both = _sum(outputs[part], low_part, weights, part, products.adapters, split=False)
            outputs[part] = _plus(both, biases[part])
    return tuple(outputs.values())


def left(x: torch.Tensor, weights: Weights, part: str, tensor: TensorGroup, products: Products) -> torch.Tensor:
    """Return the sum over a group of the products of their parts of `x` and of a matrix of which each rank has some
    columns, without its bias."""
    output = products.leave(x, _matrix(weights, part), tensor)
    if f"{part}.{UP}" not in weights:
        return output
    low = leave(functional.linear(x, weights[f"{part}.{DOWN}"]), tensor)
    return _sum(output, low, weights, part, products.adapters, split=True)


def made_here(x: torch.Tensor, weights: Weights, part: str, products: Products) -> torch.Tensor:
    """Return the product of `x` with a matrix that every rank has whole, and its bias."""
    bias = weights.get(f"{part}.bias")
    if f"{part}.{UP}" not in weights:
        return linear(x, _matrix(weights, part), bias)
    output = linear(x, _matrix(weights, part))
    low = functional.linear(x, weights[f"{part}.{DOWN}"])
    return _plus(_sum(output, low, weights, part, products.adapters, split=False), bias)


def in_two_steps(
    x: torch.Tensor, weights: Weights, down: str, up: Sequence[str], tensor: TensorGroup, products: Products
) -> tuple[torch.Tensor, ...]:
    """Return the products of all positions of `x` with matrices of low rank: first with `down`, which every rank has
    whole, then with those `up`."""
    return entered(made_here(x, weights, down, products), weights, up, tensor, products)


def _matrix(weights: Weights, part: str) -> torch.Tensor:
    in_bytes = weights.get(f"{part}.{PACKED}")
    return weights[f"{part}.weight"] if in_bytes is None else in_bytes


def _sum(
    output: torch.Tensor, low: torch.Tensor, weights: Weights, part: str, adapters: AdapterProducts, *, split: bool
) -> torch.Tensor:
    """Return what a matrix and its adapter make of the same input: `output`, and `low` that A has made. `split`: each
    rank has some columns of the matrix."""
    up = weights[f"{part}.{UP}"]
    output = output + adapters.scale * functional.linear(low, up)
    if f"{part}.{LENGTHS}" not in weights:
        return output
    with torch.no_grad():
        merged = wide(_matrix(weights, part), up.dtype) + adapters.scale * (up @ weights[f"{part}.{DOWN}"])
        lengths = torch.linalg.vector_norm(merged, dim=1, dtype=torch.float32)
        if split:
            lengths = all_reduced(lengths.square(), adapters.tensor).sqrt()
    stretch = (weights[f"{part}.{LENGTHS}"] / lengths).to(output.dtype)
    return applied(_Stretched, output, stretch)


class _Stretched(torch.autograd.Function):
    """The rows of a product times numbers [m]. It keeps what it returns, which whatever takes that keeps as a rule."""

    @staticmethod
    def forward(ctx: Any, product: torch.Tensor, stretch: torch.Tensor) -> torch.Tensor:
        stretched = product * stretch
        ctx.save_for_backward(stretched, stretch)
        return stretched

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (gradient,), (stretched, stretch) = gradients, ctx.saved_tensors
        return gradient * stretch, (gradient * stretched).flatten(0, -2).sum(0) / stretch


def _plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias


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
    whole_tensor = functional.ScalingType.TensorWise
    return functional.scaled_mm(
        x.values, matrix.values.t(), x.scale, whole_tensor, matrix.scale, whole_tensor, output_dtype=dtype
    )  # fmt: skip


def _enter(x: torch.Tensor, matrices: Sequence[Matrix], tensor: TensorGroup) -> tuple[torch.Tensor, ...]:
    products = _apply(x, tensor, WHOLE, [weight for weight, _ in matrices])
    return tuple(y if bias is None else y + bias for y, (_, bias) in zip(products, matrices, strict=True))


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
        part = scaled(x, torch.float8_e4m3fn, before)
        ctx.before, ctx.after, ctx.shape = before, after, x.shape
        trained = any(ctx.needs_input_grad[3:])
        ctx.save_for_backward(*((part.values, part.scale) if trained else (None, None)), *weights)
        whole = gathered(part, before)
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
        of_weights = [product(row.transposed, inputs, gradients[0].dtype) for row in rows]
        return leaving(), None, None, *of_weights
