"""Tensors to measure on: their precision, their content, and how many of them."""

from __future__ import annotations

import math
from typing import Any

from shardwright.measure.device import MeasuredDevice, torch_device

MOST_COPIES = 8
CACHES = 2.0  # operands rotate over this many times the last cache, so that they come from memory as in training
BLOCK = 65536  # random numbers that are drawn; more would take longer to draw than to measure


def torch_dtype(name: str) -> Any:
    """Return PyTorch's dtype of the operands for a name of `Dtype`."""
    import torch

    return {
        "fp32": torch.float32,
        "tf32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8": torch.float8_e4m3fn,
    }[name]


def copies(device: MeasuredDevice, operand_bytes: float) -> int:
    """Return how many sets of operands to rotate."""
    return min(max(math.ceil(CACHES * device.cache_bytes / operand_bytes), 1), MOST_COPIES)


def operand(device: MeasuredDevice, dtype: str, *sizes: int) -> Any:
    """Return a tensor of normal random numbers, repeated from a block of them: zeros would draw less power, and so run
    at higher clocks, than training does."""
    import torch

    count = math.prod(sizes)
    block = torch.randn(min(count, BLOCK), device=torch_device(device))
    return block.repeat(math.ceil(count / len(block)))[:count].view(sizes).to(torch_dtype(dtype))
