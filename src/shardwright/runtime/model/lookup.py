"""The rows of an embedding, and their gradient, which is added to what the table has some columns at a time."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn import functional

from shardwright.runtime.model.loss import GRADIENT_ELEMENTS


def looked_up(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return the rows of a table [rows, width] for tokens [..., ]: [..., width].

    Autograd would make a gradient of the table twice, in its own type and in that of its buffer: for 128,256 rows of
    4,096 numbers 3 GiB, more than all that a rank of a deep pipeline keeps of short sequences.
    """
    function: Any = _LookUp
    return cast("torch.Tensor", function.apply(tokens, table))


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens, table if ctx.needs_input_grad[1] else None)
        return functional.embedding(tokens, table)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor | None]:
        tokens, table = ctx.saved_tensors
        if table is None:
            return None, None
        if table.grad is None:
            return None, _summed(gradients[0], tokens, len(table))
        many = max(GRADIENT_ELEMENTS // len(table), 1)
        for total, part in zip(
            torch.split(table.grad, many, dim=1), torch.split(gradients[0], many, dim=-1), strict=True
        ):
            total.add_(_summed(part, tokens, len(table)))
        return None, None


def _summed(gradient: torch.Tensor, tokens: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the gradients [..., width] of all tokens of a row, added up, for each of them: [rows, width]."""
    operator: Any = torch.ops.aten.embedding_dense_backward
    out: torch.Tensor = operator(gradient, tokens, rows, -1, False)
    return out
