"""What cannot be traced is refused with the line of the user's code."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardwright.errors import SpecError
from shardwright.spmd.task import Task
from shardwright.spmd.trace import trace


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if y.sum() > 0:  # the line
            y = -y
        return y


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + torch.randn_like(x))


def total(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return module(batch["x"]).sum()


def test_a_branch_on_values_is_refused_with_its_line() -> None:
    lines, first = inspect.getsourcelines(Branching)
    (line,) = [first + offset for offset, text in enumerate(lines) if "# the line" in text]
    with pytest.raises(SpecError) as caught:
        trace(Branching(), {"x": torch.randn(3, 4)}, total)
    (problem,) = caught.value.problems
    assert problem.path == f"{Path(__file__)}:{line}"
    assert "if y.sum() > 0" in problem.message
    assert "torch.where" in problem.hint


def test_random_numbers_by_local_shape_are_refused() -> None:
    with pytest.raises(SpecError, match="draws random numbers"):
        trace(Noisy(), {"x": torch.randn(3, 4)}, total)


def test_an_error_in_the_user_s_code_names_its_line() -> None:
    with pytest.raises(SpecError, match="same reduction dim") as caught:
        trace(Branching(), {"x": torch.randn(3, 5)}, total)
    assert caught.value.problems[0].path.startswith(str(Path(__file__)))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([torch.randn(3, 4)], "the batch: is a list"),
        ({"x": torch.randn(3, 4), "scale": 3}, "the batch: scale: is a int, no tensor"),
        ({"x": torch.randn(3, 4), "mask": None}, "the batch: mask: is a NoneType, no tensor"),
    ],
)
def test_a_batch_that_is_no_mapping_of_tensors_is_refused_by_name(batch: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        trace(nn.Linear(4, 4), batch, total)


def test_a_module_without_anything_to_train_is_refused() -> None:
    for module in (nn.Identity(), nn.Linear(4, 4).requires_grad_(False)):
        with pytest.raises(SpecError, match="has no parameter that wants a gradient"):
            trace(module, {"x": torch.randn(3, 4)}, total)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3)), "leaves 1.weight without a shape"),
        (lambda: nn.LazyBatchNorm1d(affine=False), "leaves running_mean without a shape"),
        (lambda: nn.ModuleList([torch.compile(nn.Linear(4, 4))]), "compiles the module"),
    ],
)
def test_a_module_that_cannot_be_cut_is_refused_when_it_is_built(build: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        Task(build=build, batch={"x": torch.randn(3, 4)}, loss=total).skeleton()
