"""What a task builds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardwright import SpecError, load_cluster
from shardwright.spmd import synthesize
from shardwright.spmd.task import Task, load_task


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


BROKEN = {
    "import": ("import torch\nfrom torch import nothing_of_the_kind\n", 2, "ImportError"),
    "missing": ("import a_library_that_is_not_there\n", 1, "ModuleNotFoundError"),
    "syntax": ("def task(:\n    pass\n", 1, "SyntaxError"),
    "call": ("def task():\n    return undefined_name\n", 2, "NameError"),
    "arguments": ("from shardwright.spmd.task import Task\n\ndef task():\n    return Task(model=1)\n", 4, "TypeError"),
    "argument": ("def task(needed):\n    return needed\n", None, "TypeError"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_a_users_module_raises_is_said_with_its_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, line, error = BROKEN[kind]
    (tmp_path / f"users_{kind}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as raised:
        load_task(f"users_{kind}:task")
    (problem,) = raised.value.problems
    assert problem.path == (f"{tmp_path / f'users_{kind}.py'}:{line}" if line else f"users_{kind}:task")
    assert error in problem.message


def layer() -> nn.Module:
    return nn.Linear(4, 1)


def raising(*_: object) -> None:
    raise KeyError("a name that is not there")


TASK = Task(build=layer, batch={"x": torch.ones(2, 4)}, loss=lambda module, batch: module(batch["x"]).sum())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"build": raising}, "`build` fails: KeyError"),
        ({"build": lambda: 3}, "returns a int"),
        ({"loss": raising}, "cannot be traced: KeyError"),
        ({"loss": lambda module, batch: module(batch["z"]).sum()}, "cannot be traced: KeyError"),
        ({"small": raising}, "`small` fails: KeyError"),
    ],
)
def test_what_a_task_raises_while_it_is_planned_is_said_with_its_line(
    changed: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synthesize, "MOST_BYTES", -1.0)  # so that a smaller task is asked for
    with pytest.raises(SpecError, match=message) as raised:
        synthesize.plan(replace(TASK, **changed), load_cluster("1x2xA100-SXM-80"))
    (problem,) = raised.value.problems
    assert "int" in message or problem.path.startswith(f"{__file__}:")


def test_a_module_that_is_not_there_is_looked_for_in_another_folder() -> None:
    with pytest.raises(SpecError, match="from the folder of the module"):
        load_task("users_nowhere:task")
