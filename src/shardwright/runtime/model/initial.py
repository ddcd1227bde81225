"""Initial values that depend on the seed and the parameter's name alone, so that every plan starts alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch

from shardwright.runtime.model.parameters import ModelParameter
from shardwright.spec.model import Model

Initial = Callable[[ModelParameter], torch.Tensor]
"""Returns a whole parameter, padding included, fp32 on the CPU."""


def seeded(model: Model, seed: int) -> Initial:
    """Return the initial values of a model for a seed."""
    return lambda parameter: initial_values(parameter, seed, rows=model.vocab if parameter.padded else None)


def initial_values(parameter: ModelParameter, seed: int, *, rows: int | None = None) -> torch.Tensor:
    """Return the whole parameter, fp32 on the CPU. `rows` cuts off padding: what is beyond these rows is zero, and the
    values do not depend on it."""
    if parameter.start != "normal":
        return torch.full(parameter.shape, float(parameter.start == "ones"))
    used = parameter.shape if rows is None else (rows, *parameter.shape[1:])
    digest = hashlib.sha256(f"{seed} {parameter.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    values = torch.empty(used).normal_(0.0, parameter.deviation, generator=generator)
    if used == parameter.shape:
        return values
    padding = torch.zeros((parameter.shape[0] - used[0], *parameter.shape[1:]))
    return torch.cat([values, padding])
