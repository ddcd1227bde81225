"""Calls that run one matrix product as training runs it, for timing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shardwright.measure.device import MeasuredDevice
from shardwright.measure.operands import copies, operand
from shardwright.measure.timing import Call
from shardwright.spec.read.machine_profile import OperatorTime


@contextmanager
def float32_products(dtype: str) -> Iterator[None]:
    """Let fp32 products use TF32 inside if `dtype` is "tf32", and not otherwise."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def gemm_calls(row: OperatorTime, device: MeasuredDevice) -> list[Call]:
    """Return calls of the product, each on operands of its own.

    Operands lie in memory as in a linear layer: weights as (columns, inner), gradients of the input against the same
    weights, gradients of the weights as products of two (tokens, …) matrices. With fp8 both are in fp8 before the call,
    row-major times column-major as its kernels want them; the cost model counts the casts as operators of their own.
    """
    width = 4 if row.dtype in ("fp32", "tf32") else 1 if row.dtype == "fp8" else 2
    size = width * row.groups * (row.m * row.k + row.k * row.n)
    make = _scaled_call if row.dtype == "fp8" else _grouped_call if row.groups > 1 else _plain_call
    return [make(row, device) for _ in range(copies(device, size))]


def _plain_call(row: OperatorTime, device: MeasuredDevice) -> Call:
    import torch

    left, right = (row.m, row.k), (row.n, row.k)
    if row.direction != "forward":
        right = (row.k, row.n)
    if row.direction == "wgrad":
        left = (row.k, row.m)
    a, b = operand(device, row.dtype, *left), operand(device, row.dtype, *right)
    a = a.t() if row.direction == "wgrad" else a
    b = b.t() if row.direction == "forward" else b
    out = torch.empty(row.m, row.n, device=a.device, dtype=a.dtype)
    return lambda: torch.mm(a, b, out=out)


def _grouped_call(row: OperatorTime, device: MeasuredDevice) -> Call:
    import torch

    a = operand(device, row.dtype, row.groups, row.m, row.k)
    b = operand(device, row.dtype, row.groups, row.n, row.k).transpose(1, 2)
    out = torch.empty(row.groups, row.m, row.n, device=a.device, dtype=a.dtype)
    return lambda: torch.bmm(a, b, out=out)


def _scaled_call(row: OperatorTime, device: MeasuredDevice) -> Call:
    import torch

    a, b = operand(device, "fp8", row.m, row.k), operand(device, "fp8", row.n, row.k).t()
    one = torch.ones((), device=a.device)
    multiply: Callable[..., Any] = torch._scaled_mm
    fast = row.direction == "forward"
    return lambda: multiply(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast)
