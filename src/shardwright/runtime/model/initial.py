"""Initial values that depend on the seed and the parameter's name alone, so that every plan starts alike."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch

from shardwright.runtime.model.nf4 import packed, unpacked
from shardwright.runtime.model.parameters import ModelParameter, target_of
from shardwright.spec.adapter import Adapter
from shardwright.spec.model import Model

Initial = Callable[[ModelParameter], torch.Tensor]  # returns a whole parameter, padding included, fp32 on the CPU


def seeded(model: Model, seed: int) -> Initial:
    return lambda parameter: initial_values(parameter, seed, rows=model.vocab if parameter.padded else None)


def beside(frozen: Initial, seed: int) -> Initial:
    """Return the initial values of a model and of adapters beside it: those of the frozen weights are given."""

    def initial(parameter: ModelParameter) -> torch.Tensor:
        if parameter.beside is None:
            return frozen(parameter)
        if parameter.start == "row lengths":
            lengths: torch.Tensor = frozen(parameter.beside).float().norm(dim=1)
            return lengths
        return initial_values(parameter, seed)

    return initial


def as_kept(whole: Initial, adapter: Adapter) -> Initial:
    """Return the values of frozen weights as they are kept beside an adapter: of matrices in NF4 the bytes, and what
    these stand for."""
    if adapter.frozen != "nf4":
        return whole

    def initial(parameter: ModelParameter) -> torch.Tensor:
        if parameter.matrix is not None:
            return packed(whole(parameter.matrix))
        value = whole(parameter)
        return value if target_of(parameter) is None else unpacked(packed(value), value.dtype)

    return initial


def initial_values(parameter: ModelParameter, seed: int, *, rows: int | None = None) -> torch.Tensor:
    """Return the whole parameter, fp32 on the CPU. `rows` cuts off padding: what is beyond these rows is zero, and the
    values do not depend on it."""
    if parameter.start in ("zeros", "ones"):
        return torch.full(parameter.shape, float(parameter.start == "ones"))
    if parameter.start == "log of counts":
        return torch.arange(1, parameter.shape[-1] + 1, dtype=torch.float32).log().expand(parameter.shape).clone()
    used = parameter.shape if rows is None else (rows, *parameter.shape[1:])
    digest = hashlib.sha256(f"{seed} {parameter.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    values, width = torch.empty(used), parameter.deviation
    if parameter.start == "uniform":
        return values.uniform_(-width, width, generator=generator)
    if parameter.start == "time steps":
        steps = values.uniform_(math.log(0.001), math.log(0.1), generator=generator).exp()
        return steps + (-torch.expm1(-steps)).log()  # what softplus takes to the steps
    values.normal_(0.0, width, generator=generator)
    if used == parameter.shape:
        return values
    return torch.cat([values, torch.zeros((parameter.shape[0] - used[0], *parameter.shape[1:]))])
