"""Communication inside a stage, with its gradient: into and out of what tensor parallelism splits.

`enter` stands before column-split matrices: every rank gets all positions, and the gradient is a sum over the ranks.
`leave` stands after row-split ones: the result is a sum over the ranks. With sequence parallelism (arXiv 2205.05198
§4.2.2) what is outside is cut along the sequence, so that entering gathers and leaving reduces and scatters.
Activations have the shape [micro_batch, sequence, hidden].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.nn import functional

gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_into = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """The tensor-parallel ranks of a stage: this rank's number, their count, the process group (None for one rank)."""

    rank: int = 0
    size: int = 1
    group: Any = None
    sequence: bool = False

    @property
    def sharded(self) -> bool:
        """Whether activations between layers are cut along the sequence."""
        return self.sequence and self.size > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroup:
    """The ranks that share the experts of a layer: `size` of them, of which this one has `rank`-th equal part.

    `local`: an expert is whole on its rank, which sends the tokens of its own positions alone; else the experts are cut
    as other matrices are, and every rank of a stage sends all tokens to the rank with the same part."""

    rank: int = 0
    size: int = 1
    group: Any = None
    local: bool = False


ALONE = ExpertGroup()


def exchange(x: torch.Tensor, sent: list[int], received: list[int], experts: ExpertGroup) -> torch.Tensor:
    """Return the rows that the ranks of an expert group sent here, `received` of each; to each went `sent` rows."""
    function: Any = _Exchange
    return cast("torch.Tensor", function.apply(x, sent, received, experts))


def enter(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return all positions of `x` for a part of the computation."""
    return x if tensor.size == 1 else _applied(_Enter, x, tensor)


def leave(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return the sum over the ranks of their parts `x`, of all positions or of this rank's."""
    return x if tensor.size == 1 else _applied(_Leave, x, tensor)


def enter_linear(
    x: torch.Tensor, matrices: Sequence[tuple[torch.Tensor, torch.Tensor | None]], tensor: TensorGroup
) -> tuple[torch.Tensor, ...]:
    """Return the products of all positions of `x` with matrices (and their biases) of which each rank has some rows.

    Under sequence parallelism this rank's positions alone are kept for the backward pass, which gathers the others
    again (Korthikanti et al., arXiv 2205.05198 §4.2.2).
    """
    if not tensor.sharded:
        whole = enter(x, tensor)
        return tuple(functional.linear(whole, weight, bias) for weight, bias in matrices)
    function: Any = _EnterLinear
    flat = [part for matrix in matrices for part in matrix]
    return cast("tuple[torch.Tensor, ...]", function.apply(x, tensor, *flat))


def _applied(function: Any, x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    return cast("torch.Tensor", function.apply(x, tensor))


def own_positions(length: int, tensor: TensorGroup) -> tuple[int, int]:
    """Return [start, stop) of the positions that this rank holds between layers."""
    if not tensor.sharded:
        return 0, length
    each = length // tensor.size
    return tensor.rank * each, (tensor.rank + 1) * each


def all_reduced(x: torch.Tensor, tensor: TensorGroup, *, maximum: bool = False) -> torch.Tensor:
    """Return the sum or maximum over the ranks; `x` itself is overwritten. It has no gradient."""
    if tensor.size > 1:
        dist.all_reduce(x, dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM, group=tensor.group)
    return x


def gathered(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return the sequence parts of all ranks side by side."""
    parts = x.new_empty((tensor.size, *x.shape))
    gather_into(parts.view(-1), x.contiguous().view(-1), group=tensor.group)
    return parts.transpose(0, 1).reshape(x.shape[0], -1, *x.shape[2:])


def scattered(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return this rank's sequence part of the sum over the ranks."""
    batch, length = x.shape[:2]
    parts = x.view(batch, tensor.size, length // tensor.size, *x.shape[2:]).transpose(0, 1).contiguous()
    out = torch.empty_like(parts[0])
    reduce_scatter_into(out.view(-1), parts.view(-1), group=tensor.group)
    return out


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
        ctx.tensor = tensor
        return gathered(x, tensor) if tensor.sequence else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        if ctx.tensor.sequence:
            return scattered(gradient.contiguous(), ctx.tensor), None
        return all_reduced(gradient.clone(memory_format=torch.contiguous_format), ctx.tensor), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
        ctx.tensor = tensor
        if tensor.sequence:
            return scattered(x.contiguous(), tensor)
        return all_reduced(x.clone(memory_format=torch.contiguous_format), tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        return (gathered(gradient, ctx.tensor) if ctx.tensor.sequence else gradient), None


class _EnterLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, tensor: TensorGroup, *parts: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        weights = [part for part in parts[::2] if part is not None]
        ctx.tensor = tensor
        ctx.save_for_backward(x, *weights)
        whole = gathered(x, tensor)
        return tuple(functional.linear(whole, *pair) for pair in zip(weights, parts[1::2], strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        whole = gathered(x, ctx.tensor).flatten(0, 1)
        rows = [gradient.flatten(0, 1) for gradient in gradients]
        entering = reduce(torch.add, (row @ weight for row, weight in zip(rows, weights, strict=True)))
        found: list[torch.Tensor | None] = []
        for number, row in enumerate(rows):
            found.append(row.t() @ whole)
            found.append(row.sum(0) if ctx.needs_input_grad[2 * number + 3] else None)
        return scattered(entering.view(x.shape[0], -1, x.shape[2]), ctx.tensor), None, *found


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sent: list[int], received: list[int], experts: ExpertGroup) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.experts = sent, received, experts
        return _exchanged(x, sent, received, experts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = gradients
        return _exchanged(gradient, ctx.received, ctx.sent, ctx.experts), None, None, None


def _exchanged(x: torch.Tensor, sent: list[int], received: list[int], experts: ExpertGroup) -> torch.Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=experts.group)
    return out
