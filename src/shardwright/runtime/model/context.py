"""Context parallelism: every rank of a group has a part of each sequence, and sees the keys and values of all.

Rank r of c has blocks r and 2c - 1 - r of 2c equal ones, so that causal attention is the same work for all (Llama 3,
arXiv 2407.21783 §3.3.2, which gathers keys and values as well).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from shardwright.runtime.model.parallel import gather_into, reduce_scatter_into


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextGroup:
    """The ranks that share sequences: their process group, and the parts of the sequence in its order; `part` is this
    rank's own."""

    part: int = 0
    parts: tuple[int, ...] = (0,)
    group: Any = None

    @property
    def size(self) -> int:
        return len(self.parts)


WHOLE = ContextGroup()


def positions_of(part: int, parts: int, length: int) -> torch.Tensor:
    """Return the positions, ascending, of one part of a sequence of `length` tokens."""
    if parts == 1:
        return torch.arange(length)
    blocks = torch.arange(length).view(2 * parts, -1)
    return torch.cat([blocks[part], blocks[2 * parts - 1 - part]])


def gathered(x: torch.Tensor, context: ContextGroup) -> torch.Tensor:
    """Return all positions, in order, of `x` [micro_batch, heads, own positions, width]; the gradient is a sum over the
    ranks."""
    function: Any = _Gather
    return x if context.size == 1 else cast("torch.Tensor", function.apply(x, context))


class _Gather(torch.autograd.Function):
    """Blocks are put in order by where they are, with no index that would have to come from the host."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, context: ContextGroup) -> torch.Tensor:
        ctx.context = context
        parts = x.new_empty((context.size, *x.shape))
        gather_into(parts.view(-1), x.contiguous().view(-1), group=context.group)
        halves = [part.chunk(2, dim=2) for part in parts]
        blocks = dict(zip(_blocks(context), (half for pair in halves for half in pair), strict=True))
        return torch.cat([blocks[number] for number in range(2 * context.size)], dim=2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        blocks = gradients[0].chunk(2 * ctx.context.size, dim=2)
        parts = torch.stack([blocks[number] for number in _blocks(ctx.context)])
        out = torch.empty_like(parts[:2])
        reduce_scatter_into(out.view(-1), parts.view(-1), group=ctx.context.group)
        return torch.cat([out[0], out[1]], dim=2), None


def _blocks(context: ContextGroup) -> list[int]:
    """Return the two blocks of each rank, one rank after the other."""
    return [number for part in context.parts for number in (part, 2 * context.size - 1 - part)]
