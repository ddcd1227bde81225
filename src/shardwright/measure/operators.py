"""Calls that run one operator as training runs it, for timing: products, attention, and what only moves memory.

Each call has tensors of its own, so that they come from memory as in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shardwright.measure.device import MeasuredDevice, torch_device
from shardwright.measure.shapes import MEMORY, WIDTH
from shardwright.measure.timing import Call
from shardwright.spec.read.machine_profile import OperatorTime

MOST_COPIES = 8
CACHES = 2.0  # operands rotate over this many times the last cache
BLOCK = 65536  # random numbers that are drawn; more would take longer to draw than to measure
HIDDEN = 2048  # of memory-bound operators: divides all matrices measured; the width hardly matters
EPSILON = 1e-5


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
    size = WIDTH[row.dtype] * row.groups * (row.m * row.k + row.k * row.n)
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
    scale = torch.ones((), device=a.device)
    multiply: Callable[..., Any] = torch._scaled_mm
    fast = row.direction == "forward"
    return lambda: multiply(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=fast)


def attention_calls(row: OperatorTime, device: MeasuredDevice) -> list[Call]:
    """Return calls of the attention, each on tensors of its own. A backward call goes through the graph of one forward
    pass, which is kept."""
    size = 2.0 * row.tokens * row.head_dim * (2 * row.heads + 2 * row.kv_heads)
    make = _forward if row.direction == "forward" else _backward
    return [make(row, device) for _ in range(copies(device, size))]


def _attend(row: OperatorTime, device: MeasuredDevice, *, gradient: bool) -> tuple[Call, tuple[object, ...]]:
    """Return the forward call and its inputs."""
    from torch.nn.functional import scaled_dot_product_attention

    def states(heads: int) -> Any:
        shape = (row.tokens // row.seq, row.seq, heads, row.head_dim)
        return operand(device, row.dtype, *shape).transpose(1, 2).requires_grad_(gradient)

    query, key, value = states(row.heads), states(row.kv_heads), states(row.kv_heads)
    grouped = row.heads != row.kv_heads

    def call() -> object:
        return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)

    return call, (query, key, value)


def _forward(row: OperatorTime, device: MeasuredDevice) -> Call:
    call, _ = _attend(row, device, gradient=False)
    return call


def _backward(row: OperatorTime, device: MeasuredDevice) -> Call:
    import torch

    call, inputs = _attend(row, device, gradient=True)
    out = call()
    assert isinstance(out, torch.Tensor)
    gradient = operand(device, row.dtype, *out.shape)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)  # type: ignore[arg-type]


def memory_calls(row: OperatorTime, device: MeasuredDevice) -> list[Call]:
    """Return calls of the operator, one of `shapes.MEMORY`, each on tensors of its own."""
    tensors = {(operation, direction): moved for operation, direction, moved in MEMORY}
    rows = row.bytes // (tensors[row.operation, row.direction] * WIDTH[row.dtype] * HIDDEN)
    make = _add if row.operation == "add" else _norm if row.direction == "forward" else _norm_gradient
    return [make(rows, row.dtype, device) for _ in range(copies(device, row.bytes))]


def _add(rows: int, dtype: str, device: MeasuredDevice) -> Call:
    import torch

    a, b, out = (operand(device, dtype, rows, HIDDEN) for _ in range(3))
    return lambda: torch.add(a, b, out=out)


def _norm(rows: int, dtype: str, device: MeasuredDevice) -> Call:
    import torch

    x = operand(device, dtype, rows, HIDDEN)
    weight, bias = torch.ones_like(x[0]), torch.zeros_like(x[0])
    return lambda: torch.native_layer_norm(x, (HIDDEN,), weight, bias, EPSILON)


def _norm_gradient(rows: int, dtype: str, device: MeasuredDevice) -> Call:
    """Return the call of the backward kernels alone: a walk through autograd would take longer than they do."""
    import torch

    x, gradient = operand(device, dtype, rows, HIDDEN), operand(device, dtype, rows, HIDDEN)
    weight, bias = torch.ones_like(x[0]), torch.zeros_like(x[0])
    _, mean, deviation = torch.native_layer_norm(x, (HIDDEN,), weight, bias, EPSILON)
    backward: Callable[..., object] = torch.ops.aten.native_layer_norm_backward.default
    return lambda: backward(gradient, x, (HIDDEN,), mean, deviation, weight, bias, (True, True, True))


CALLS: Mapping[str, Callable[[OperatorTime, MeasuredDevice], list[Call]]] = {
    "gemm": gemm_calls,
    "attention": attention_calls,
    "memory": memory_calls,
}
