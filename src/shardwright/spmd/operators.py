"""The operators of our own that a traced graph holds, each registered with PyTorch so that tracing sees one node.

`attention` stands for whatever kernel a device has for scaled dot-product attention; `cross_entropy` keeps rows apart,
so that a shard of them means something; `dropout` draws by position in the whole tensor instead of by local shape;
`grouped_mm` multiplies each row by the matrix of its own expert, whatever the order of the rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shardwright.spmd import kernels

NAMESPACE = "shardwright"


@torch.library.custom_op(f"{NAMESPACE}::attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float, number: int
) -> tuple[Tensor, Tensor]:
    return kernels.attention(q, k, v, mask, dropout, causal, scale, draw=kernels.Draw(number=number))


@attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float, number: int
) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(q.shape[:-1], dtype=kernels.wide_type(q))


@torch.library.custom_op(f"{NAMESPACE}::attention_backward", mutates_args=())
def attention_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    dropout: float,
    causal: bool,
    scale: float,
    number: int,
) -> tuple[Tensor, Tensor, Tensor]:
    draw = kernels.Draw(number=number)
    return kernels.attention_backward(gradient, q, k, v, mask, out, logsumexp, dropout, causal, scale, draw=draw)


@attention_backward.register_fake
def _(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _attention_saved(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, *ctx.settings = inputs
    ctx.masked = mask is not None
    ctx.save_for_backward(q, k, v, *output, *([mask] if ctx.masked else []))


def _attention_gradients(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
    q, k, v, out, logsumexp, *mask = ctx.saved_tensors
    gradients = attention_backward(gradient, q, k, v, mask[0] if mask else None, out, logsumexp, *ctx.settings)
    return (*gradients, None, None, None, None, None)


attention.register_autograd(_attention_gradients, setup_context=_attention_saved)


@torch.library.custom_op(f"{NAMESPACE}::cross_entropy", mutates_args=())
def cross_entropy(logits: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    return kernels.cross_entropy(logits, target, ignore)


@cross_entropy.register_fake
def _(logits: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    return logits.new_empty(target.shape), logits.new_empty(target.shape)


@torch.library.custom_op(f"{NAMESPACE}::cross_entropy_backward", mutates_args=())
def cross_entropy_backward(gradient: Tensor, logits: Tensor, target: Tensor, logsumexp: Tensor, ignore: int) -> Tensor:
    return kernels.cross_entropy_backward(gradient, logits, target, logsumexp, ignore)


@cross_entropy_backward.register_fake
def _(gradient: Tensor, logits: Tensor, target: Tensor, logsumexp: Tensor, ignore: int) -> Tensor:
    return torch.empty_like(logits)


def _cross_entropy_saved(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    ctx.ignore = inputs[2]
    ctx.save_for_backward(inputs[0], inputs[1], output[1])


def _cross_entropy_gradients(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Any, ...]:
    logits, target, logsumexp = ctx.saved_tensors
    return cross_entropy_backward(gradient, logits, target, logsumexp, ctx.ignore), None, None


cross_entropy.register_autograd(_cross_entropy_gradients, setup_context=_cross_entropy_saved)


@torch.library.custom_op(f"{NAMESPACE}::dropout", mutates_args=())
def dropout(x: Tensor, chance: float, number: int) -> Tensor:
    return kernels.dropout(x, chance, kernels.Draw(number=number))


@dropout.register_fake
def _(x: Tensor, chance: float, number: int) -> Tensor:
    return torch.empty_like(x)


def _dropout_saved(ctx: Any, inputs: tuple[Tensor, float, int], output: Tensor) -> None:
    _, ctx.chance, ctx.number = inputs


def _dropout_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    # What a mask multiplies forward, the same mask multiplies backward.
    return dropout(gradient, ctx.chance, ctx.number), None, None


dropout.register_autograd(_dropout_gradients, setup_context=_dropout_saved)


@torch.library.custom_op(f"{NAMESPACE}::grouped_mm", mutates_args=())
def grouped_mm(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    """Return y (rows, out) with y[row] = x[row] @ weight[expert[row]]: x (rows, in), weight (experts, in, out)."""
    return kernels.grouped_mm(x, weight, expert)


@grouped_mm.register_fake
def _(x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


@torch.library.custom_op(f"{NAMESPACE}::grouped_mm_weight", mutates_args=())
def grouped_mm_weight(x: Tensor, gradient: Tensor, expert: Tensor, experts: int) -> Tensor:
    """Return, for each expert, the sum over its rows of the outer product of x[row] and gradient[row]."""
    return kernels.grouped_mm_weight(x, gradient, expert, experts)


@grouped_mm_weight.register_fake
def _(x: Tensor, gradient: Tensor, expert: Tensor, experts: int) -> Tensor:
    return x.new_empty(experts, x.shape[1], gradient.shape[1])


def _grouped_mm_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weight, expert = ctx.saved_tensors
    to_input = grouped_mm(gradient, weight.transpose(1, 2), expert)
    return to_input, grouped_mm_weight(x, gradient, expert, weight.shape[0]), None


grouped_mm.register_autograd(
    _grouped_mm_gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)
