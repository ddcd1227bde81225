"""Whole models of other people through the commands: three steps of `spmd train` by what `spmd plan` wrote have the
losses of eager mode, or the plan is refused by name."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.cli.running import Outcome, run
from tests.nightly import nightly
from tests.spmd import zoo, zoo_vision
from tests.spmd.processes import processes

from shardwright.spmd.check import Masked
from shardwright.spmd.task import Task

pytest.importorskip("transformers")
CLUSTER = "1x2x4090 + 1x1x3090"
SLOW = "1e-7"  # of the peak: models of this size are sharded where computing is slow
RANKS, STEPS = 3, 3
USUAL = ("vit", "convnext")
Do = Callable[[Callable[["Command", int], Outcome], "Command"], Outcome]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that torchrun would start on each rank."""

    arguments: tuple[str, ...]
    port: int


def commanded(command: Command, rank: int) -> Outcome:
    """Run a command as torchrun does."""
    tasks()
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_PORT": command.port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in place.items()}}
    return run(command.arguments)


def tasks() -> None:
    """Make the module `published`, with a factory of tasks for each model."""
    module = ModuleType("published")
    for source, models in ((zoo, zoo.MODELS), (zoo_vision, zoo_vision.CLASSIFIERS)):
        for name in models:
            setattr(module, name.replace("-", "_"), partial(source.task, name))
    sys.modules["published"] = module


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def ranks() -> Iterator[Do]:
    with processes(RANKS, backend=None) as do:
        yield do


def eager_losses(task: Task) -> list[float]:
    torch.manual_seed(0)
    module = task.build().train()
    optimizer = task.optimizer_of(module.named_parameters())
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with Masked(step):
            loss = task.loss(module, task.batch_of(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", [*USUAL, *nightly(name for name in zoo.MODELS if name not in USUAL)])
def test_a_published_model_trains_as_in_eager_mode(name: str, tmp_path: Path, ranks: Do) -> None:
    holds(name, zoo.task, zoo.REFUSED.get(name), tmp_path, ranks)


@pytest.mark.parametrize("name", nightly(zoo_vision.CLASSIFIERS))
def test_a_classifier_of_timm_or_torchvision_trains_as_in_eager_mode(name: str, tmp_path: Path, ranks: Do) -> None:
    library = zoo_vision.CLASSIFIERS[name].library
    if not zoo_vision.importable(library):
        pytest.skip(f"needs {library} ({zoo_vision.INSTALL})")
    holds(name, zoo_vision.task, zoo_vision.REFUSED.get(name), tmp_path, ranks)


def holds(name: str, task_of: Callable[[str], Task], refused: str | None, tmp_path: Path, ranks: Do) -> None:
    """Hold three steps of a model by the commands to eager mode, or its refusal to the reason."""
    tasks()
    factory, step = f"published:{name.replace('-', '_')}", tmp_path / "step.json"
    made = run(["spmd", "plan", factory, "--cluster", CLUSTER, "--efficiency", SLOW, "--out", str(step)])
    if refused is not None:
        assert made.code == 2 and refused in made.err and not step.exists(), made
        return
    assert made.code == 0, made.err
    arguments = ("spmd", "train", str(step), factory, "--steps", str(STEPS), "--device", "cpu", "--json")
    trained = ranks(commanded, Command(arguments=arguments, port=free_port()))
    assert trained.code == 0, trained.err
    torch.testing.assert_close(json.loads(trained.out)["losses"], eager_losses(task_of(name)), rtol=1e-5, atol=1e-5)


def test_the_page_has_the_outcomes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spmd-models.md").read_text(encoding="utf-8")
    assert zoo.outcomes() in page and zoo_vision.outcomes() in page
