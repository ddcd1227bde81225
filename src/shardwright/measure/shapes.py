"""What is measured: about thirty products of training sizes, attention, memory-bound operators and collectives.

The sizes are those of layers of published models (Llama 3.1 8B and 70B, DeepSeek's experts) on one GPU with and without
tensor parallelism. On a device that would take too long for them they are all scaled down by the same factor, so that
one call takes a part of the time that a row has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwright.measure.device import MeasuredDevice
from shardwright.spec.read.machine_profile import Collective, CollectiveTime, Dtype, OperatorTime

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    main = device.dtypes[0]
    for dtype in device.dtypes if device.backend == "cpu" else (main,):
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
