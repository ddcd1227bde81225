"""A run that is resumed ends where one that was not interrupted does, by the same program or by another one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
from tests.nightly import nightly
from tests.spmd.draws import drawn
from tests.spmd.models import build
from torch import Tensor

from shardwright.errors import SpecError
from shardwright.runtime.state.recipe import Recipe
from shardwright.spmd import checkpoint
from shardwright.spmd.check import ThreadFabric, on_ranks
from shardwright.spmd.run import Course, _stepped
from shardwright.spmd.task import Task
from shardwright.spmd.trace import trace
from shardwright.spmd.training import SpmdStep, state_names, whole_state
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.program import Program
from shardwright.synthesis.rules.candidates import choices

STEPS, HALF = 4, 2
RATE = Recipe(learning_rate=1.0, warmup_steps=2, decay_steps=STEPS)
OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "plain": lambda groups: torch.optim.SGD(groups, lr=0.1),
}


@cache
def case(name: str) -> tuple[Graph, dict[str, str], dict[str, Tensor], Task]:
    module, batch, loss = build(name)
    graph = trace(module, batch, loss)
    state = {key: tensor.detach().clone() for key, tensor in whole_state(module).items()}
    return graph, state_names(module), state, Task(build=lambda: module, batch=batch, loss=loss)


def decayed(name: str) -> dict[str, float]:
    return {"weight_decay": 0.0} if name.endswith("bias") else {"weight_decay": 0.1}


def trained(
    name: str, program: Program, optimizer: str, folder: Path, first: int, last: int
) -> tuple[list[float], dict[str, Tensor]]:
    """Return losses and state of steps `first` to `last`, from the folder's newest checkpoint if `first` is not 0; leave
    a checkpoint there."""
    graph, names, state, task = case(name)
    task = Task(build=task.build, batch=task.batch, loss=task.loss, optimizer=OPTIMIZERS[optimizer], groups=decayed)
    course = Course(accumulate=2, clip=0.5, rate=RATE.rate)

    def on(fabric: ThreadFabric) -> tuple[list[float], dict[str, Tensor]]:
        step = SpmdStep(graph, program, names=names, fabric=fabric, seed=5)
        chosen = task.optimizer_of(step.named_parameters())
        rates = [group["lr"] for group in chosen.param_groups]
        if first:
            checkpoint.restore(step, chosen, checkpoint.opened(folder))
            step.steps = first * course.accumulate
        else:
            step.receive(state if fabric.rank == 0 else None)
        losses = []
        for number in range(first, last):
            for group, rate in zip(chosen.param_groups, rates, strict=True):
                group["lr"] = rate * course.rate(number)
            losses.append(_stepped(step, chosen, task, number, course))
        checkpoint.save(step, chosen, folder, last, {"seed": 5}, keep=2)
        return losses, step.state_dict()

    return on_ranks(program.ranks, on)[0]


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("bert", "adamw"), *nightly([("everything", "adamw"), ("bert", "momentum"), ("bert", "plain")])],
)
def test_a_run_in_two_halves_ends_as_the_whole(tmp_path: Path, name: str, optimizer: str) -> None:
    graph = case(name)[0]
    one, other = (drawn(graph, choices(graph), ranks, Random(ranks)) for ranks in (3, 2))
    losses, state = trained(name, one, optimizer, tmp_path / "whole", 0, STEPS)
    trained(name, one, optimizer, tmp_path / "half", 0, HALF)
    again, ended = trained(name, one, optimizer, tmp_path / "half", HALF, STEPS)
    assert again == losses[HALF:]
    assert ended.keys() == state.keys() and all(torch.equal(ended[key], state[key]) for key in state)
    trained(name, one, optimizer, tmp_path / "moved", 0, HALF)
    moved, _ = trained(name, other, optimizer, tmp_path / "moved", HALF, STEPS)
    torch.testing.assert_close(moved, losses[HALF:], rtol=1e-4, atol=1e-5)
    assert [path.name for path in checkpoint.steps(tmp_path / "half")] == [f"step-{step:08}" for step in (HALF, STEPS)]


def test_the_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    graph = case("bert")[0]
    program = drawn(graph, choices(graph), 1, Random(0))
    trained("bert", program, "momentum", tmp_path, 0, 1)
    with pytest.raises(SpecError, match="has the state of SGD, the task's optimizer is AdamW"):
        trained("bert", program, "adamw", tmp_path, 1, 2)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="has no checkpoint"):
        checkpoint.opened(tmp_path)
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "run.json").write_text("{")
    with pytest.raises(SpecError, match="is no checkpoint"):
        checkpoint.opened(tmp_path)


def test_steps_after_the_one_that_a_run_goes_on_from_are_kept_under_another_name(tmp_path: Path) -> None:
    """They would else stay in place of the new ones, and be resumed."""
    for number in (8, 9, 10):
        folder = tmp_path / f"step-{number:08}"
        folder.mkdir()
        (folder / "run.json").touch()
    assert [path.name for path in checkpoint.give_up(tmp_path, 8)] == [
        "step-00000009.given-up",
        "step-00000010.given-up",
    ]
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-00000008"]
