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
from tests.spmd import zoo
from tests.spmd.processes import processes

from shardwright.spmd.eager import Masked

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
    for name in zoo.MODELS:
        setattr(module, name.replace("-", "_"), partial(zoo.task, name))
    sys.modules["published"] = module


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def ranks() -> Iterator[Do]:
    with processes(RANKS, joined=False) as do:
        yield do


def eager_losses(name: str) -> list[float]:
    task = zoo.task(name)
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
    tasks()
    factory, step = f"published:{name.replace('-', '_')}", tmp_path / "step.json"
    made = run(["spmd", "plan", factory, "--cluster", CLUSTER, "--efficiency", SLOW, "--out", str(step)])
    if name in zoo.REFUSED:
        assert made.code == 2 and zoo.REFUSED[name] in made.err and not step.exists(), made
        return
    assert made.code == 0, made.err
    arguments = ("spmd", "train", str(step), factory, "--steps", str(STEPS), "--device", "cpu", "--json")
    trained = ranks(commanded, Command(arguments=arguments, port=free_port()))
    assert trained.code == 0, trained.err
    torch.testing.assert_close(json.loads(trained.out)["losses"], eager_losses(name), rtol=1e-5, atol=1e-5)


def test_the_page_has_the_outcomes() -> None:
    assert zoo.outcomes() in (Path(__file__).parents[2] / "docs" / "spmd-models.md").read_text(encoding="utf-8")
