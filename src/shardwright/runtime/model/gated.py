"""The inner part of feed-forward blocks and experts, and how blocks name their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from shardwright.runtime.model.parallel import TensorGroup, enter_linear

Weights = Mapping[str, torch.Tensor]
WHOLE = TensorGroup()
Activation = Callable[[torch.Tensor], torch.Tensor]


def inside(weights: Weights, block: str) -> dict[str, torch.Tensor]:
    """Return the parameters of one block of a unit, under their names within it."""
    return {name.removeprefix(f"{block}."): value for name, value in weights.items() if name.startswith(f"{block}.")}


def inner(x: torch.Tensor, weights: Weights, activation: Activation, tensor: TensorGroup = WHOLE) -> torch.Tensor:
    """Return a feed-forward block up to the sum over ranks and the last bias. `x` has this rank's positions of a tensor
    group, all positions without one."""
    parts = ("gate", "up") if "gate.weight" in weights else ("up",)
    found = enter_linear(x, [(weights[f"{part}.weight"], weights.get(f"{part}.bias")) for part in parts], tensor)
    first = activation(found[0])
    return functional.linear(first * found[1] if len(found) > 1 else first, weights["down.weight"])
