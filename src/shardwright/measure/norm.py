"""Calls that run operators which only move memory, for timing: addition, and LayerNorm forward and backward."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.measure.device import MeasuredDevice
from shardwright.measure.operands import copies, operand
from shardwright.measure.shapes import MEMORY, WIDTH
from shardwright.measure.timing import Call
from shardwright.spec.read.machine_profile import OperatorTime

HIDDEN = 2048  # divides all matrices measured; the width hardly matters
EPSILON = 1e-5


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
