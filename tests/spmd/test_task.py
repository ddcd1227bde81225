"""What a task builds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shardwright.spmd.task import Task


class Sized(nn.Module):
    """A layer whose width is the value of a tensor, as regnets and stochastic depth compute theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, int(torch.round(torch.tensor(2.6)).int().item()))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_a_module_that_is_built_from_values_has_a_skeleton() -> None:
    task = Task(build=Sized, batch={"x": torch.ones(2, 4)}, loss=lambda module, batch: module(batch["x"]).sum())
    assert task.skeleton().get_parameter("layer.weight").shape == (3, 4)
