"""Frozen matrices in four bits, NF4, and products with them (QLoRA, arXiv 2305.14314 §3).

A weight is one of 16 numbers, the quantiles of a normal distribution, times the largest weight of its block. A block is
64 weights of a row in 36 bytes: 32 of two codes each, then its largest weight in fp32. So a part of a matrix, whatever
rows or blocks of columns a rank has, says all that it is by itself. The scales are not quantised again: that would save
a twelfth of the bytes, and tie 256 blocks in a row together.

Matrices are made wide for one product at a time, and again in its backward pass: what autograd keeps is the bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn import functional

from shardwright.runtime.model.parallel import applied
from shardwright.spec.adapter import NF4_BLOCK, NF4_WIDENED

NUMBERS = (  # bitsandbytes/functional.py 0.50: get_4bit_type
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
CODE_BYTES = NF4_BLOCK // 2


def packed(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix [m, n] as blocks of bytes [m, n / 64, 36]: the numbers that are nearest."""
    blocks = matrix.float().contiguous().view(matrix.shape[0], -1, NF4_BLOCK)
    largest = blocks.abs().amax(dim=2, keepdim=True)
    numbers = torch.tensor(NUMBERS)
    codes = torch.bucketize(blocks / largest.clamp(min=torch.finfo().tiny), (numbers[1:] + numbers[:-1]) / 2.0)
    pairs = codes.to(torch.uint8).view(*codes.shape[:2], CODE_BYTES, 2)
    return torch.cat([pairs[..., 0] << 4 | pairs[..., 1], largest.view(torch.uint8)], dim=2)


def unpacked(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix [m, n] that blocks of bytes are, some rows at a time."""
    rows, columns = blocks.shape[0], blocks.shape[1] * NF4_BLOCK
    matrix = torch.empty(rows, columns, dtype=dtype, device=blocks.device)
    pairs, at_once = _pairs(blocks.device), max(NF4_WIDENED // columns, 1)
    for first in range(0, rows, at_once):
        part, wide = blocks[first : first + at_once], matrix[first : first + at_once]
        codes, scales = part[..., :CODE_BYTES], part[..., CODE_BYTES:]
        numbers = functional.embedding(codes.int(), pairs).flatten(2)
        wide.copy_(numbers.mul_(scales.contiguous().view(torch.float32)).flatten(1))
    return matrix


def is_packed(matrix: torch.Tensor) -> bool:
    """Return whether a matrix is kept as blocks of bytes."""
    return matrix.dtype == torch.uint8


def wide(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix as it is multiplied with, however it is kept."""
    return unpacked(matrix, dtype) if is_packed(matrix) else matrix


def linear(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return the product of `x` with a matrix, however it is kept, and its bias."""
    if not is_packed(matrix):
        return functional.linear(x, matrix, bias)
    product = applied(_Linear, x, matrix)
    return product if bias is None else product + bias


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(blocks)
        return functional.linear(x, unpacked(blocks, x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,), (blocks,) = gradients, ctx.saved_tensors
        return gradient @ unpacked(blocks, gradient.dtype), None


@cache
def _pairs(device: torch.device) -> torch.Tensor:
    """Return the two numbers that each byte of codes stands for, [256, 2]."""
    numbers = torch.tensor(NUMBERS, device=device)
    return torch.cartesian_prod(numbers, numbers)
