"""What is measured, and the calls that run it: about thirty products of training sizes, attention, memory-bound
operators and collectives.

The sizes are those of layers of published models (Llama 3.1 8B and 70B, DeepSeek's experts) on one GPU with and without
tensor parallelism. On a device that would take too long for them they are all scaled down by the same factor, so that
one call takes a part of the time that a row has. A call runs one operator as training runs it, on tensors of its own,
so that they come from memory as in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from shardwright.measure.device import Call, MeasuredDevice, torch_device
from shardwright.records import record
from shardwright.spec.read.machine_profile import Collective, CollectiveTime, Dtype, OperatorTime

MOST_COPIES = 8
CACHES = 2.0  # operands rotate over this many times the last cache
BLOCK = 65536  # random numbers that are drawn; more would take longer to draw than to measure
HIDDEN = 2048  # of memory-bound operators: divides all matrices measured; the width hardly matters
EPSILON = 1e-5
# Tokens, columns and inner size of the forward product.
PRODUCTS = (
    (8192, 8192, 8192),
    (4096, 28672, 4096),
    (4096, 4096, 14336),
    (8192, 7168, 8192),
    (8192, 8192, 3584),
    (4096, 6144, 4096),
    (4096, 4096, 4096),
    (8192, 1280, 8192),
    (4096, 16032, 4096),
    (2048, 2048, 2048),
    (1024, 4096, 1024),
)
GROUPED = ((512, 2816, 2048, 8), (512, 2048, 1408, 8))
# Samples, tokens of one, heads, key-value heads, width of a head.
ATTENTION = (
    (1, 4096, 32, 8, 128),
    (2, 2048, 32, 32, 64),
    (1, 8192, 8, 1, 128),
    (4, 2048, 16, 4, 128),
    (2, 4096, 16, 16, 64),
)
MATRICES = ((2048, 8192), (4096, 8192), (8192, 8192))  # rows and columns of memory-bound operators
MEMORY = (("add", "forward", 3), ("layer_norm", "forward", 2), ("layer_norm", "backward", 3))  # and tensors moved
COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
COLLECTIVE_BYTES = (2**16, 2**19, 2**22, 2**25, 2**28)
FULLY_MEASURED: tuple[Dtype, ...] = ("bf16", "fp8")
ALSO_PAIRS_FROM = 4  # devices
EVERY = 3  # of the others, every third shape
CALL_SHARE = 0.1  # of a row's time, for the longest call
MEMORY_SHARE = 0.05  # of the device's memory, for the operands of a product
STEP, SEQUENCE_STEP = 64, 128
WIDTH = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


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
    """Return calls of the operator, one of `MEMORY`, each on tensors of its own."""
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


@record
class ShapeSettings:
    """Seconds for each row, and the speed from which sizes follow."""

    row_seconds: float
    flops_per_second: float


def row_count(device: MeasuredDevice) -> int:
    """Return how many rows a complete profile has, for dividing up the time."""
    whole = ShapeSettings(row_seconds=1e6, flops_per_second=1e18)
    return len(operator_rows(device, whole)) + len(collective_rows(device, whole))


def operator_rows(device: MeasuredDevice, settings: ShapeSettings) -> tuple[OperatorTime, ...]:
    """Return the operators to measure; their `seconds` are still 0."""
    scale = shape_scale(device, settings)
    rows = [row for dtype in device.dtypes for row in _products(device, dtype, scale)]
    for dtype in device.dtypes if device.backend == "cpu" else (device.dtypes[0],):
        rows += _attention(dtype, scale)
        rows += _memory(dtype, scale)
    return tuple(dict.fromkeys(rows))


def shape_scale(device: MeasuredDevice, settings: ShapeSettings) -> float:
    """Return the factor of all sizes, at most 1, with which the largest product keeps to its time and memory."""
    m, n, k = max(PRODUCTS, key=lambda sizes: sizes[0] * sizes[1] * sizes[2])
    allowed = CALL_SHARE * settings.row_seconds * settings.flops_per_second
    by_time = (allowed / (2.0 * m * n * k)) ** (1 / 3)
    by_memory = (MEMORY_SHARE * device.memory_bytes / (4.0 * (m * k + k * n + m * n))) ** (1 / 2)
    return float(min(1.0, by_time, by_memory))


def _products(device: MeasuredDevice, dtype: Dtype, scale: float) -> Iterator[OperatorTime]:
    """Yield the forward product and both gradients of each shape; grouped ones forward."""
    every = 1 if dtype in (device.dtypes[0], *FULLY_MEASURED) else EVERY
    for tokens, columns, inner in PRODUCTS[::every]:
        m, n, k = (_scaled(size, scale) for size in (tokens, columns, inner))
        row = OperatorTime(kind="gemm", direction="forward", dtype=dtype, seconds=0.0, m=m, n=n, k=k, groups=1)
        yield row
        yield replace(row, direction="dgrad", n=k, k=n)
        yield replace(row, direction="wgrad", m=k, k=m)
    for tokens, columns, inner, groups in GROUPED if dtype == device.dtypes[0] else ():
        m, n, k = (_scaled(size, scale) for size in (tokens, columns, inner))
        yield OperatorTime(kind="gemm", direction="forward", dtype=dtype, seconds=0.0, m=m, n=n, k=k, groups=groups)


def _attention(dtype: Dtype, scale: float) -> Iterator[OperatorTime]:
    for batch, sequence, heads, kv_heads, width in ATTENTION:
        seq = _scaled(sequence, scale, SEQUENCE_STEP)
        row = OperatorTime(
            kind="attention",
            direction="forward",
            dtype=dtype,
            seconds=0.0,
            tokens=batch * seq,
            seq=seq,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=width,
        )
        yield row
        yield replace(row, direction="backward")


def _memory(dtype: Dtype, scale: float) -> Iterator[OperatorTime]:
    for tokens, hidden in MATRICES:
        moved = _scaled(tokens, scale) * _scaled(hidden, scale) * WIDTH[dtype]
        for operation, direction, tensors in MEMORY:
            yield OperatorTime(
                kind="memory",
                direction="forward" if direction == "forward" else "backward",
                dtype=dtype,
                operation=operation,
                seconds=0.0,
                bytes=tensors * moved,
            )


def _scaled(size: int, scale: float, step: int = STEP) -> int:
    return max(round(size * scale / step), 1) * step


def collective_rows(device: MeasuredDevice, settings: ShapeSettings) -> tuple[CollectiveTime, ...]:
    """Return the collectives to measure over all devices, and over two of them where there are four or more; none for
    a single device. Sizes that would take a CPU much longer than their time are left out."""
    degrees = dict.fromkeys((device.count,) if device.count < ALSO_PAIRS_FROM else (2, device.count))
    most = COLLECTIVE_BYTES[-1] if device.backend == "cuda" else max(settings.row_seconds * 256 * 2**20, 2**22)
    return tuple(
        CollectiveTime(collective=collective, ranks=2 if collective == "send" else ranks, bytes=size, seconds=0.0)
        for ranks in degrees
        if ranks > 1
        for collective in COLLECTIVES
        if collective != "send" or ranks == device.count
        for size in COLLECTIVE_BYTES
        if size <= most
    )
