"""The inner part of feed-forward blocks and experts, and how blocks name their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

Weights = Mapping[str, torch.Tensor]
Activation = Callable[[torch.Tensor], torch.Tensor]


def inside(weights: Weights, block: str) -> dict[str, torch.Tensor]:
    """Return the parameters of one block of a unit, under their names within it."""
    return {name.removeprefix(f"{block}."): value for name, value in weights.items() if name.startswith(f"{block}.")}


def inner(x: torch.Tensor, weights: Weights, activation: Activation) -> torch.Tensor:
    """Return a feed-forward block up to the sum over ranks and the last bias."""
    up = functional.linear(x, weights["up.weight"], weights.get("up.bias"))
    if "gate.weight" in weights:
        up = activation(functional.linear(x, weights["gate.weight"], weights.get("gate.bias"))) * up
    else:
        up = activation(up)
    return functional.linear(up, weights["down.weight"])
