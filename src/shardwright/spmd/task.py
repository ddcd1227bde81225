"""What a user wants to train: a module, a batch, a loss, and where batches and the optimizer come from."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shardwright.errors import bad
from shardwright.spmd.trace import Loss


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training run, as `shardwright spmd` is given it.

    `build` makes the module; planning calls it on the device "meta", where it takes no memory. `batch` has the shapes
    of every batch, all ranks' rows together; `loss(module, batch)` returns a scalar. `batches(step)` returns the batch
    of a step (`batch` itself, if not given), `optimizer(parameters)` any optimizer that works element by element.
    `small()` returns the same task with fewer layers, narrower ones and fewer rows, less than a gigabyte of tensors:
    planning runs a step of it, to see that programs for it equal eager mode. `groups(name)` returns the options of the
    optimizer for a parameter, such as `{"weight_decay": 0.0}`: `optimizer` is then given PyTorch's groups.
    """

    build: Callable[[], nn.Module]
    batch: Mapping[str, Tensor]
    loss: Loss
    batches: Callable[[int], Mapping[str, Tensor]] | None = None
    optimizer: Callable[[Any], torch.optim.Optimizer] = _adamw
    small: Callable[[], Task] | None = None
    groups: Callable[[str], Mapping[str, Any]] | None = None

    def batch_of(self, step: int) -> Mapping[str, Tensor]:
        """Return the batch of a step."""
        return self.batches(step) if self.batches else self.batch

    def optimizer_of(self, named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Return the optimizer of parameters by name, in groups of equal options if there are `groups`."""
        if self.groups is None:
            return self.optimizer([parameter for _, parameter in named])
        groups: list[dict[str, Any]] = []
        for name, parameter in named:
            options = dict(self.groups(name))
            group = next((group for group in groups if {**group, "params": 0} == {**options, "params": 0}), None)
            if group is None:
                groups.append(group := {**options, "params": []})
            group["params"].append(parameter)
        return self.optimizer(groups)

    def skeleton(self) -> nn.Module:
        """Return the module, ready for training: without memory for its parameters, unless values of tensors are read
        to build it."""
        try:
            with torch.device("meta"):
                return self.build().train()
        except (NotImplementedError, RuntimeError):
            return self.build().train()


def load_task(name: str) -> Task:
    """Return what `module:factory` returns, a `Task`. The current folder is searched first.

    Raises `SpecError` where the module cannot be imported, or the factory is missing or returns something else.
    """
    module, _, factory = name.partition(":")
    if not module or not factory:
        raise bad(name, "is not of the form module:factory", "for example train:task, for `def task()` in train.py")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = getattr(importlib.import_module(module), factory, None)
    except ModuleNotFoundError as error:
        raise bad(name, f"cannot be imported: {error}", "run it from the folder of the module") from error
    if found is None:
        raise bad(name, f"{module} has no {factory!r}", "name a function that returns a shardwright.spmd.task.Task")
    task = found() if callable(found) else found
    if not isinstance(task, Task):
        raise bad(name, f"returns a {type(task).__name__}", "return a shardwright.spmd.task.Task")
    return task
