"""What a trace calls in place of what a shard could not compute.

Each function stands for one ATen operator that PyTorch composes of others, takes its arguments and is traced through:
its backward comes from autograd.

Experts of `transformers` are traced row by row. Its own implementation sorts the tokens by expert, so that a row's
place depends on all rows. `grouped_mm` takes rows in any order, so a shard of the rows is computed like the whole.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch._dispatch.python import enable_python_dispatcher

from shardwright.spmd import operators
from shardwright.spmd.operators import grouped_mm
from shardwright.synthesis.rules.table import RESIZED

aten = torch.ops.aten
_numbers: ContextVar[Iterator[int]] = ContextVar("numbers of operators that draw at random")
_MEAN, _SUM = 1, 2
_BAG_MEAN, _LARGEST = 1, 2
_NAME = "shardwright"


@contextmanager
def numbered() -> Iterator[None]:
    """Count the operators that draw at random, from 0, in the order in which they are traced."""
    token = _numbers.set(itertools.count())
    try:
        yield
    finally:
        _numbers.reset(token)


@contextmanager
def replaced_operators() -> Iterator[None]:
    """Let PyTorch call our functions where it would call the operators that they stand for, from C++ too."""
    before = {op: dict(op.py_kernels) for op in (*REPLACEMENTS, *UNBROKEN)}
    try:
        for op, function in REPLACEMENTS.items():
            _set_kernels(op, {torch._C.DispatchKey.CompositeImplicitAutograd: function})
        for op in UNBROKEN:
            _set_kernels(op, {})
        with enable_python_dispatcher():
            yield
    finally:
        for op, kernels in before.items():
            _set_kernels(op, kernels)


def _set_kernels(op: Any, kernels: dict[Any, Callable[..., Any]]) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot-product attention as one operator, on four dimensions."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    number = next(_numbers.get()) if dropout_p > 0 else 0
    if not enable_gqa and len({x.shape[:-2] for x in (query, key, value)}) > 1:
        every = torch.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))
        query, key, value = (x.expand(*every, *x.shape[-2:]) for x in (query, key, value))
    lead = query.shape[:-2]
    query, key, value = (_four(x) for x in (query, key, value))
    out, _ = operators.attention(query, key, value, _four_mask(attn_mask), dropout_p, is_causal, scale, number)
    return out if len(lead) == 2 else out.reshape(*lead, *out.shape[-2:])


def _four(x: Tensor) -> Tensor:
    return x if x.ndim == 4 else x.reshape(math.prod(x.shape[:-3]), *([1] * (3 - x.ndim)), *x.shape[-3:])


def _four_mask(mask: Tensor | None) -> Tensor | None:
    return mask if mask is None or mask.ndim == 4 else mask.reshape(*[1] * (4 - mask.ndim), *mask.shape)


def dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Dropout that draws by position."""
    return operators.dropout(input, p, next(_numbers.get())) if train and p > 0 else input.clone()


def dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """The same, in place."""
    return input.copy_(dropout(input, p, train))


def feature_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Dropout of whole channels."""
    if not train or p == 0:
        return input.clone()
    ones = torch.ones_like(input).sum(tuple(range(2, input.ndim)), keepdim=True) * (1 / math.prod(input.shape[2:]))
    return input * operators.dropout(ones, p, next(_numbers.get()))


def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The dropout between the layers of a recurrent network, and which elements it kept."""
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    number = next(_numbers.get())
    return operators.dropout(input, p, number), operators.dropout(torch.ones_like(input), p, number) != 0


def cross_entropy_loss(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy row by row, then reduced by ordinary operators."""
    if weight is not None or label_smoothing or target.is_floating_point():
        composed = aten.cross_entropy_loss.default._op_dk
        settings = (weight, reduction, ignore_index, label_smoothing)
        return composed(torch._C.DispatchKey.CompositeImplicitAutograd, self, target, *settings)
    logits = self.movedim(1, -1).reshape(-1, self.shape[1]) if self.ndim > 2 else self.reshape(-1, self.shape[-1])
    rows, _ = operators.cross_entropy(logits, target.reshape(-1), ignore_index)
    if reduction == _SUM:
        return rows.sum()
    if reduction == _MEAN:
        return rows.sum() / (target.reshape(-1) != ignore_index).to(rows.dtype).sum()
    return rows.reshape(target.shape)


def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """BatchNorm by sums over the batch, which is therefore the whole batch, however it is sharded."""
    dims = [0, *range(2, input.ndim)]
    shape = [1, -1, *[1] * (input.ndim - 2)]
    if training or running_mean is None or running_var is None:
        count = input.numel() // input.shape[1]
        mean = input.sum(dims) / count
        centred = input - mean.view(shape)
        variance = (centred * centred).sum(dims) / count
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.copy_(running_mean * (1 - momentum) + mean * momentum)
                running_var.copy_(running_var * (1 - momentum) + variance * (momentum * count / max(count - 1, 1)))
    else:
        centred, variance = input - running_mean.view(shape), running_var
    result = centred * torch.rsqrt(variance + eps).view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    return result if bias is None else result + bias.view(shape)


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums and means of bags as an embedding whose rows are added by bag."""
    if mode == _LARGEST or scale_grad_by_freq or sparse or padding_idx is not None or not indices.numel():
        settings = (scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx)
        composed = aten.embedding_bag.padding_idx._op_dk
        return composed(torch._C.DispatchKey.CompositeImplicitAutograd, weight, indices, offsets, *settings)
    starts = offsets[:-1] if include_last_offset else offsets
    places = torch.arange(indices.numel(), device=indices.device, dtype=starts.dtype)
    bag = torch.searchsorted(starts, places, right=True) - 1
    rows = torch.embedding(weight, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    size = torch.zeros_like(starts).index_add(0, bag, torch.ones_like(places))
    out = rows.new_zeros(starts.numel(), weight.shape[1]).index_add(0, bag, rows)
    if mode == _BAG_MEAN:
        out = out / size.clamp(min=1).to(out.dtype).unsqueeze(-1)
    return out, bag, size, size


REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    aten.embedding_bag.padding_idx: embedding_bag,
    aten.scaled_dot_product_attention.default: attention,
    aten.dropout.default: dropout,
    aten.dropout_.default: dropout_,
    aten.feature_dropout.default: feature_dropout,
    aten.cross_entropy_loss.default: cross_entropy_loss,
    aten.batch_norm.default: batch_norm,
}


def _dims(x: Tensor) -> list[int]:
    return list(range(x.ndim))


def _count(x: Tensor, dim: list[int] | None) -> int:
    """Return how many elements are taken together; a number counts as having one dimension."""
    return math.prod(x.shape[d] for d in dim or _dims(x)) if x.ndim else 1


def _mean(
    self: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    return self.sum(dim or _dims(self), keepdim, dtype=dtype) / _count(self, dim)


def _sum_all(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return self.sum(list(range(self.ndim)), dtype=dtype)


def _variance(
    self: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    dims, count = dim or _dims(self), _count(self, dim)
    centred = self - self.sum(dims, True) / count
    return (centred * centred.conj()).real.sum(dims, keepdim) / max(
        count - (1 if correction is None else correction), 0
    )


def _deviation(self: Tensor, dim: list[int] | None = None, **settings: Any) -> Tensor:
    return _variance(self, dim, **settings).sqrt()


def _variance_mean(self: Tensor, dim: list[int] | None = None, **settings: Any) -> tuple[Tensor, Tensor]:
    return _variance(self, dim, **settings), _mean(self, dim, settings.get("keepdim", False))


def _deviation_mean(self: Tensor, dim: list[int] | None = None, **settings: Any) -> tuple[Tensor, Tensor]:
    return _deviation(self, dim, **settings), _mean(self, dim, settings.get("keepdim", False))


# Kernels of PyTorch that its Python dispatcher would break into many operators.
UNBROKEN = [
    getattr(getattr(aten, f"upsample_{kind}"), overload) for kind in RESIZED for overload in ("default", "vec")
]  # fmt: skip
# Losses and others that fall apart into operators that have rules.
_COMPOSED = get_decompositions(
    [
        aten.mse_loss, aten.mse_loss_backward, aten.smooth_l1_loss, aten.smooth_l1_loss_backward, aten.huber_loss,
        aten.huber_loss_backward, aten.binary_cross_entropy, aten.binary_cross_entropy_backward,
        aten.binary_cross_entropy_with_logits, aten.soft_margin_loss, aten.soft_margin_loss_backward,
        aten.nll_loss_forward, aten.nll_loss_backward, aten.nll_loss2d_forward, aten.nll_loss2d_backward,
        aten.glu, aten.glu_backward, aten._prelu_kernel, aten._prelu_kernel_backward, aten.log_sigmoid_backward,
        aten.hardsigmoid_backward, aten.baddbmm, aten.addr, aten.pixel_shuffle, aten.pixel_unshuffle,
        aten.select_scatter, aten.nansum,
    ]
)  # fmt: skip
# What AOTAutograd decomposes below autograd. A mean is a sum divided by the number of elements of the *whole* tensor.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    **_COMPOSED,
    aten.var.correction: _variance,
    aten.std.correction: _deviation,
    aten.var_mean.correction: _variance_mean,
    aten.std_mean.correction: _deviation_mean,
    aten.native_dropout.default: native_dropout,
    aten.mean.dim: _mean,
    aten.mean.default: _mean,
    aten.sum.default: _sum_all,
}


@contextmanager
def experts_by_row(module: nn.Module) -> Iterator[None]:
    """Let the experts inside `module` that come from `transformers` run row by row."""
    moe = sys.modules.get("transformers.integrations.moe")
    every: list[Any] = [getattr(part, "config", None) for part in module.modules()]
    configs = [config for config in every if hasattr(config, "_experts_implementation")]
    if moe is None or not configs:
        yield
        return
    before = [config._experts_implementation for config in configs]
    moe.ALL_EXPERTS_FUNCTIONS.register(_NAME, _forward)
    try:
        for config in configs:
            config._experts_implementation_internal = _NAME
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._experts_implementation_internal = name


def _forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What a class of experts computes for tokens (rows, hidden), each with `top_k` experts and weights."""
    rows, chosen = top_k_index.shape
    expert = top_k_index.reshape(-1)
    x = hidden_states.unsqueeze(1).expand(rows, chosen, hidden_states.shape[-1]).reshape(rows * chosen, -1)
    x = _linear(self, x, "gate_up_proj" if self.has_gate else "up_proj", expert)
    x = self._apply_gate(x) if self.has_gate else self.act_fn(x)
    x = _linear(self, x, "down_proj", expert)
    if self.has_post_expert_norm:
        x = self.post_expert_norm(x)
    x = x.reshape(rows, chosen, -1) * top_k_weights.unsqueeze(-1)
    return x.sum(1).to(hidden_states.dtype)


def _linear(self: Any, x: Tensor, name: str, expert: Tensor) -> Tensor:
    weight = getattr(self, name)
    y = grouped_mm(x, weight if self.is_transposed else weight.transpose(1, 2), expert)
    return y + getattr(self, f"{name}_bias")[expert] if self.has_bias else y
