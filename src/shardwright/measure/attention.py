"""Calls that run fused causal attention, forward or backward, for timing."""

from __future__ import annotations

from typing import Any

from shardwright.measure.device import MeasuredDevice
from shardwright.measure.operands import copies, operand
from shardwright.measure.timing import Call
from shardwright.spec.read.machine_profile import OperatorTime


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
