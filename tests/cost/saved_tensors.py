"""What PyTorch keeps for a backward pass, and the FLOPs that it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def saved_bytes(module: Any, compute: Callable[[], object]) -> int:
    """Return the bytes that `compute` leaves for its backward pass in tensors that are no weights of `module`. Every
    storage counts once; it is held meanwhile, so that no other takes its place."""
    import torch

    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    saved: dict[int, int] = {}
    held: list[Any] = []

    def keep(tensor: Any) -> Any:
        held.append(tensor)
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = compute()
    assert getattr(result, "requires_grad", True), "there is a backward pass"
    return sum(size for place, size in saved.items() if place not in weights)


def counted_flops(compute: Callable[[], object]) -> int:
    """Return the FLOPs of what `compute` does, as PyTorch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        compute()
    return int(counter.get_total_flops())
