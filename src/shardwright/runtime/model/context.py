"""Context parallelism: every rank of a group has a part of each sequence, and sees the keys and values of all.

Rank r of c has blocks r and 2c - 1 - r of 2c equal ones, so that causal attention is the same work for all (Llama 3,
arXiv 2407.21783 §3.3.2, which gathers keys and values as well).

Of keys and values a rank keeps its own part for the backward pass, which gathers the others again. So the graph of
attention itself must not hold what it saves: that is in boxes, which are filled for the backward pass alone. What stays
between goes through autograd's own saving, so that recomputation of whole layers frees it as all else.

Attention that is recomputed keeps nothing beside its inputs: then the backward pass gathers, repeats it and goes on.
(Under torch's own checkpoint the repeated forward pass would gather, and its backward pass once more.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from shardwright.records import record
from shardwright.runtime.model.parallel import applied, gather_into, reduce_scatter_into

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@record
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
    return x if context.size == 1 else applied(_Gather, x, context)


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


def attention_in_parts(
    attention: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: ContextGroup
) -> torch.Tensor:
    """Return causal attention [micro_batch, heads, own positions, width] of queries, keys and values of this rank's
    positions to those of all; `attention` computes that of queries which are of the last positions of the keys."""
    return applied(_InParts, attention, context, query, key, value)


def recomputed_attention_in_parts(
    attention: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: ContextGroup
) -> torch.Tensor:
    """Return the same; the backward pass repeats the forward pass."""
    return applied(_Repeated, attention, context, query, key, value)


def _whole(
    attention: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: ContextGroup
) -> torch.Tensor:
    return _joined(_parts(attention, query, gathered(key, context), gathered(value, context), context))


def _parts(
    attention: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: ContextGroup
) -> list[torch.Tensor]:
    """Return the attention of the two blocks of a rank, each to the keys up to its end."""
    blocks, ends = query.chunk(2, dim=2), (context.part + 1, 2 * context.size - context.part)
    seen = [(block, end * block.shape[2]) for block, end in zip(blocks, ends, strict=True)]
    return [attention(block, key[:, :, :end], value[:, :, :end]) for block, end in seen]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the blocks one after the other, in the order that the projection after them takes: by position."""
    return torch.cat([part.transpose(1, 2) for part in parts], dim=1).transpose(1, 2)


@dataclass(slots=True, eq=False)
class _Box:
    """A tensor that the graph of attention saves, there while `value` is. `place` is the number of the input or output
    in whose memory it lies, with sizes, strides and offset `view`; None for one that lies in none of them."""

    value: torch.Tensor | None
    place: int | None = None
    view: tuple[Any, ...] = ()

    def empty(self, inputs: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Let go of the tensor, and return it unless it is a view of an input or a part of the output."""
        value, self.value = self.value, None
        assert value is not None
        self.view, memory = (value.size(), value.stride(), value.storage_offset()), value.untyped_storage()._cdata
        for number, x in enumerate((*inputs, *parts)):
            if x.untyped_storage()._cdata == memory and (number < len(inputs) or x.shape == value.shape):
                self.place = number
                return None
        return value

    def fill(
        self, inputs: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], others: Iterator[torch.Tensor]
    ) -> None:
        """Have the tensor again, of the same inputs and parts, or the next of the others."""
        if self.place is None:
            self.value = next(others)
        elif self.place < len(inputs):
            self.value = inputs[self.place].as_strided(*self.view)
        else:
            self.value = parts[self.place - len(inputs)]


class _Source(torch.autograd.Function):
    """A tensor as the beginning of a graph, which does not hold it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, spark: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None]:
        return None, None


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        attention: Attention,
        context: ContextGroup,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:
        boxes: list[_Box] = []

        def pack(x: torch.Tensor) -> _Box:
            boxes.append(_Box(x.detach()))
            return boxes[-1]

        source: Any = _Source
        with torch.enable_grad(), saved_tensors_hooks(pack, lambda box: box.value):
            spark = torch.zeros((), requires_grad=True)
            own = [source.apply(x.detach(), spark) for x in (query, key, value)]
            keys, values = (gathered(x, context) for x in own[1:])
            parts = _parts(attention, own[0], keys, values, context)
        out = _joined([part.detach() for part in parts])
        rest = [box.empty((query, keys, values), parts) for box in boxes]
        ctx.context, ctx.boxes = context, boxes
        ctx.begin, ctx.end = [get_gradient_edge(x) for x in own], [get_gradient_edge(part) for part in parts]
        ctx.save_for_backward(query, key, value, out, *(x for x in rest if x is not None))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, *rest = ctx.saved_tensors
        parts, pushed = (x.chunk(2, dim=2) for x in (out, gradients[0]))
        inputs, others = (query, *(gathered(x, ctx.context) for x in (key, value))), iter(rest)
        for box in ctx.boxes:
            box.fill(inputs, parts, others)
        found = torch.autograd.grad(ctx.end, ctx.begin, pushed)
        for box in ctx.boxes:
            box.value = None
        return None, None, *found


class _Repeated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        attention: Attention,
        context: ContextGroup,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:
        ctx.attention, ctx.context = attention, context
        ctx.save_for_backward(query, key, value)
        return _whole(attention, query, key, value, context)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        with torch.enable_grad():
            out = _whole(ctx.attention, query, key, value, ctx.context)
        return None, None, *torch.autograd.grad(out, (query, key, value), gradients[0])
