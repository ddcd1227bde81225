"""Products of rows with the matrix of their group, in any precision and compiled.

PyTorch 2.13 traces its grouped product in bf16 alone (`_meta_grouped_mm_common` refuses other types), though it
computes others too. These go through an operator of our own, which torch.compile takes as it is.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn import functional


def grouped_product(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the products [rows, n] of rows [rows, k] with the matrices [groups, k, n] of their groups, which end at
    `ends` [groups], int32."""
    if rows.dtype == torch.bfloat16:
        return functional.grouped_mm(rows, matrices, offs=ends)
    return cast("torch.Tensor", _grouped(rows, matrices, ends))


@torch.library.custom_op("shardwright::grouped_product", mutates_args=())
def _grouped(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the products of the groups' rows of `left` with their matrices in `right` or, where this is a matrix, of
    the groups' columns of `left` with their rows of `right`, [groups, …]."""
    return functional.grouped_mm(left, right, offs=ends)


@_grouped.register_fake
def _(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    product = left.new_empty((left.shape[0], right.shape[-1]))
    return product if right.dim() == 3 else product.new_empty((ends.shape[0], *product.shape))


def _saved(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    rows, matrices, ends = inputs
    ctx.save_for_backward(rows if ctx.needs_input_grad[1] else None, matrices, ends)


def _gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
    rows, matrices, ends = ctx.saved_tensors
    gradient = gradient.contiguous()
    of_matrices = _grouped(rows.t(), gradient, ends) if ctx.needs_input_grad[1] else None
    return _grouped(gradient, matrices.transpose(1, 2), ends), of_matrices, None


_grouped.register_autograd(_gradients, setup_context=_saved)
