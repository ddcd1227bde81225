"""Attention of a rank's part of the positions to those of all ranks.

Of keys and values a rank keeps its own part for the backward pass, which gathers the others again. So the graph of
attention itself must not hold what it saves: that is in boxes, which are filled for the backward pass alone. What stays
between goes through autograd's own saving, so that recomputation of whole layers frees it as all else.

Attention that is recomputed keeps nothing beside its inputs: then the backward pass gathers, repeats it and goes on.
(Under torch's own checkpoint the repeated forward pass would gather, and its backward pass once more.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from shardwright.runtime.model.context import ContextGroup, gathered

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def attention_in_parts(
    attention: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: ContextGroup
) -> torch.Tensor:
    """Return causal attention [micro_batch, heads, own positions, width] of queries, keys and values of this rank's
    positions to those of all; `attention` computes that of queries which are of the last positions of the keys."""
    function: Any = _InParts
    return cast("torch.Tensor", function.apply(attention, context, query, key, value))


def recomputed_attention_in_parts(
    attention: Attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, context: ContextGroup
) -> torch.Tensor:
    """Return the same; the backward pass repeats the forward pass."""
    function: Any = _Repeated
    return cast("torch.Tensor", function.apply(attention, context, query, key, value))


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
