"""What the operators of our own compute, on whole tensors or on the shard of a rank.

A shard of `attention`, `grouped_mm` or `dropout` is computed like a whole; only what is drawn at random needs to know
where the shard lies (`Draw`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shardwright.records import record

# Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014: SplitMix64. PyTorch has no unsigned
# 64-bit product, but the signed one wraps in the same way.
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1


@record
class Draw:
    """Which numbers a dropout draws: those of step `seed` and of operator `number`, at the global `indices`.

    `indices` holds, for each dimension of the tensor, the global positions that the local tensor has, and `shape` the
    global shape; None where the tensor is whole.
    """

    number: int
    seed: int = 0
    shape: tuple[int, ...] | None = None
    indices: Sequence[Tensor | None] | None = None


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _mixed(word: int) -> int:
    """Return SplitMix64's mixture of one word."""
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Return the words shifted right, zeros coming in from the left."""
    return (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def kept(local: Sequence[int], chance: float, draw: Draw, device: torch.device) -> Tensor:
    """Return which elements of a tensor of shape `local` a dropout with probability `chance` keeps.

    Whether an element is kept depends on the seed of the step, the number of the operator and the position of the
    element in the whole tensor alone, so any sharding keeps the same ones. 24 random bits decide.
    """
    shape = tuple(draw.shape or local)
    positions = torch.zeros((), dtype=torch.int64, device=device)
    for dim, size in enumerate(shape):
        indices = draw.indices[dim] if draw.indices else None
        along = torch.arange(size, device=device) if indices is None else indices.to(device)
        stride = math.prod(shape[dim + 1 :])
        positions = positions + (along * stride).view(-1, *[1] * (len(shape) - dim - 1))
    key = _mixed((_mixed((draw.seed * _GOLDEN + 1) & _WORD) + draw.number * _GOLDEN) & _WORD)
    words = positions.add_(1).mul_(_signed(_GOLDEN)).add_(_signed(key))
    words.bitwise_xor_(_shifted(words, 30)).mul_(_signed(_FIRST))
    words.bitwise_xor_(_shifted(words, 27)).mul_(_signed(_SECOND))
    words.bitwise_xor_(_shifted(words, 31))
    return _shifted(words, 40) >= round(chance * (1 << 24))


def dropout(x: Tensor, chance: float, draw: Draw) -> Tensor:
    """Return `x` with each element zero with probability `chance`, the others scaled up to keep the mean."""
    if chance >= 1:
        return torch.zeros_like(x)
    return x * kept(x.shape, chance, draw, x.device).to(x.dtype) * (1 / (1 - chance))


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, chance: float, causal: bool, scale: float, *, draw: Draw
) -> tuple[Tensor, Tensor]:
    """Return attention (batch, heads, queries, width) and the logarithms of its denominators (batch, heads, queries).

    `k` and `v` may have fewer heads than `q`, each serving a run of queries' heads. A boolean `mask` says who may look
    at whom; another is added to the scores.
    """
    if _has_flash(q, k, v, chance):
        k, v = (_repeated(x, q.shape[1]) for x in (k, v))
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, logsumexp = flash(q, k, v, 0.0, causal, attn_mask=_additive(mask, q), scale=scale)
        return out, logsumexp
    if chance == 0 and q.device.type != "cpu":
        return fused(q, k, v, mask, causal, scale), q.new_zeros(q.shape[:3], dtype=wide_type(q))
    scores = _scores(q, _repeated(k, q.shape[1]), mask, causal, scale)
    logsumexp = torch.logsumexp(scores, -1)
    weights = _weights(scores, logsumexp)
    if chance:
        weights = dropout(weights, chance, draw)
    return weights.to(q.dtype) @ _repeated(v, q.shape[1]), logsumexp


def attention_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    chance: float,
    causal: bool,
    scale: float,
    *,
    draw: Draw,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients to `q`, `k` and `v`; the weights are computed anew from `logsumexp`, as FlashAttention does.

    Dao et al., "FlashAttention: fast and memory-efficient exact attention with IO-awareness", 2022, algorithm 4.
    """
    groups = k.shape[1]
    k, v = (_repeated(x, q.shape[1]) for x in (k, v))
    if _has_flash(q, k, v, chance):
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        to_q, to_k, to_v = flash(
            gradient, q, k, v, out, logsumexp, 0.0, causal, attn_mask=_additive(mask, q), scale=scale
        )
        return to_q, _gathered(to_k, groups), _gathered(to_v, groups)
    if chance == 0 and q.device.type != "cpu":
        to_q, to_k, to_v = fused_backward(gradient, q, k, v, mask, causal, scale)
        return to_q, _gathered(to_k, groups), _gathered(to_v, groups)
    weights = _weights(_scores(q, k, mask, causal, scale), logsumexp)
    kind = wide_type(q)
    wide = gradient.to(kind)
    to_weights = wide @ v.to(kind).mT
    dropped = weights
    if chance:
        dropped, to_weights = dropout(weights, chance, draw), dropout(to_weights, chance, draw)
    to_scores = weights * (to_weights - (wide * out.to(kind)).sum(-1, keepdim=True)) * scale
    to_q, to_k, to_v = to_scores @ k.to(kind), to_scores.mT @ q.to(kind), dropped.mT @ wide
    return to_q.to(q.dtype), _gathered(to_k, groups).to(k.dtype), _gathered(to_v, groups).to(v.dtype)


def wide_type(x: Tensor) -> torch.dtype:
    """Return the element type of statistics of `x`: fp32, or fp64 for fp64."""
    return torch.promote_types(x.dtype, torch.float32)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Return attention by whatever kernel PyTorch has for the device. What kernels keep for the backward differs, so
    nothing is kept: the backward computes the forward once more."""
    k, v = (_repeated(x, q.shape[1]) for x in (k, v))
    return nn.functional.scaled_dot_product_attention(q, k, v, _additive(mask, q), is_causal=causal, scale=scale)


def fused_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        return torch.autograd.grad(fused(q, k, v, mask, causal, scale), (q, k, v), gradient)


def _has_flash(q: Tensor, k: Tensor, v: Tensor, chance: float) -> bool:
    return q.device.type == "cpu" and chance == 0 and q.shape[-1] == v.shape[-1] and q.numel() > 0 < k.numel()


def _additive(mask: Tensor | None, q: Tensor) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)


def _repeated(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _gathered(x: Tensor, groups: int) -> Tensor:
    return x if x.shape[1] == groups else x.unflatten(1, (groups, -1)).sum(2)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    kind = wide_type(q)
    scores = (q.to(kind) * scale) @ k.to(kind).mT
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    added = _additive(mask, q)
    return scores if added is None else scores + added


def _weights(scores: Tensor, logsumexp: Tensor) -> Tensor:
    """Return softmax(scores); a query that may look at nothing has weights 0."""
    return torch.nan_to_num(torch.exp(scores - logsumexp.unsqueeze(-1)), nan=0.0)


def cross_entropy(logits: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    """Return each row's cross-entropy, 0 where the target is `ignore`, and the logarithm of its denominator."""
    logsumexp = torch.logsumexp(logits, 1)
    counted = target != ignore
    chosen = logits.gather(1, torch.where(counted, target, 0).unsqueeze(1)).squeeze(1)
    return torch.where(counted, logsumexp - chosen, 0.0), logsumexp


def cross_entropy_backward(
    gradient: Tensor, logits: Tensor, target: Tensor, logsumexp: Tensor, ignore: int, *, first: int = 0
) -> Tensor:
    """Return the gradient to `logits`, which hold the classes from `first` on."""
    result = (logits - logsumexp.unsqueeze(1)).exp_()  # of the size of the logits: all else is done in place
    index = target - first
    inside = (target != ignore) & (index >= 0) & (index < logits.shape[1])
    if logits.shape[1]:
        rows = torch.arange(len(target), device=logits.device)
        result[rows, torch.where(inside, index, 0)] -= inside.to(result.dtype)
    return result.mul_(torch.where(target != ignore, gradient, 0.0).unsqueeze(1))


def grouped_mm(x: Tensor, weight: Tensor, expert: Tensor, first: int = 0) -> Tensor:
    """Return y with y[row] = x[row] @ weight[expert[row] - first]; 0 where that expert is not among `weight`."""
    result = x.new_zeros(x.shape[0], weight.shape[2])
    for index, rows in enumerate(_rows_of(expert, first, weight.shape[0])):
        result[rows] = x[rows] @ weight[index]
    return result


def grouped_mm_weight(x: Tensor, gradient: Tensor, expert: Tensor, experts: int, first: int = 0) -> Tensor:
    """Return, for `experts` experts from `first` on, x[rows].T @ gradient[rows] over the rows of each."""
    result = x.new_zeros(experts, x.shape[1], gradient.shape[1])
    for index, rows in enumerate(_rows_of(expert, first, experts)):
        torch.mm(x[rows].T, gradient[rows], out=result[index])
    return result


def _rows_of(expert: Tensor, first: int, experts: int) -> tuple[Tensor, ...]:
    order = torch.argsort(expert, stable=True)
    bounds = torch.searchsorted(
        expert[order].contiguous(), torch.arange(first, first + experts + 1, device=expert.device)
    )
    limits: list[int] = bounds.tolist()
    return tuple(order[start:end] for start, end in itertools.pairwise(limits))
