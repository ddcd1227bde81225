"""Products with frozen matrices and the adapters beside them (LoRA, arXiv 2106.09685; DoRA, arXiv 2402.09353).

With A [r, n] and B [m, r] beside a matrix W [m, n] the product is that with W + (α/r) B A. Under DoRA each row of this
sum is brought to a length of its own, a parameter [m]; the length that it had counts as a constant (§4.3 there), as in
PEFT. Between the products with A and B the tensor-parallel ranks exchange r numbers a token: those of all positions
where each has some rows of W, sums where each has some columns. A or B that is whole on every rank sees the positions
of its rank under sequence parallelism, as norms do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional

from shardwright.runtime.model.adapters import DOWN, LENGTHS, UP
from shardwright.runtime.model.parallel import TensorGroup, all_reduced, enter, leave
from shardwright.runtime.model.products import AdapterProducts, Products

Weights = Mapping[str, torch.Tensor]


def entered(
    x: torch.Tensor, weights: Weights, parts: Sequence[str], tensor: TensorGroup, products: Products
) -> tuple[torch.Tensor, ...]:
    """Return the products of all positions of `x`, of which a rank of a group has its own, with the matrices of some
    parts of a block, of which each rank has some rows, and their biases."""
    having = [part for part in parts if f"{part}.{UP}" in weights]
    biases = {part: weights.get(f"{part}.bias") for part in parts}
    matrices = [(weights[f"{part}.weight"], None if part in having else biases[part]) for part in parts]
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
    output = products.leave(x, weights[f"{part}.weight"], tensor)
    if f"{part}.{UP}" not in weights:
        return output
    low = leave(functional.linear(x, weights[f"{part}.{DOWN}"]), tensor)
    return _sum(output, low, weights, part, products.adapters, split=True)


def made_here(x: torch.Tensor, weights: Weights, part: str, products: Products) -> torch.Tensor:
    """Return the product of `x` with a matrix that every rank has whole, and its bias."""
    bias = weights.get(f"{part}.bias")
    if f"{part}.{UP}" not in weights:
        return functional.linear(x, weights[f"{part}.weight"], bias)
    output = functional.linear(x, weights[f"{part}.weight"])
    low = functional.linear(x, weights[f"{part}.{DOWN}"])
    return _plus(_sum(output, low, weights, part, products.adapters, split=False), bias)


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
        merged = weights[f"{part}.weight"] + adapters.scale * (up @ weights[f"{part}.{DOWN}"])
        lengths = torch.linalg.vector_norm(merged, dim=1, dtype=torch.float32)
        if split:
            lengths = all_reduced(lengths.square(), adapters.tensor).sqrt()
    stretch: torch.Tensor = weights[f"{part}.{LENGTHS}"] / lengths
    return output * stretch.to(output.dtype)


def _plus(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else x + bias
