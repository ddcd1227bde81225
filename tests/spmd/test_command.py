"""`shardwright spmd` from end to end: plan, show, train under torchrun, as a new user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests import warm
from tests.cli.running import refused, run, succeeded
from tests.cli.schemas import holds
from tests.spmd.programs import stored_bytes

from shardwright.spmd.check import Masked
from shardwright.spmd.document import load
from shardwright.spmd.task import load_task

EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTER = "1x1x4090 + 1x1x3090"
TASK = """
import torch
from spmd_task import Pictures, Task, batch as whole, loss

def batch(step):
    return {name: tensor[:10, ..., :8, :8] if tensor.ndim > 1 else tensor[:10] for name, tensor in whole(step).items()}

def task():
    return Task(build=lambda: Pictures(8, 2), batch=batch(0), loss=loss, batches=batch,
                optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
"""


def under_torchrun(folder: Path, ranks: int, *arguments: str) -> str:
    """Return what the command writes on standard output, run by `ranks` processes."""
    path = os.pathsep.join([*sys.path, str(folder), str(EXAMPLES)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "-m", "shardwright"]
    with warm.programs():
        done = subprocess.run([sys.executable, *start, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plan_show_and_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(TASK)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(EXAMPLES), *sys.path])
    step, end = str(tmp_path / "step.json"), tmp_path / "end.safetensors"
    made = succeeded(["spmd", "plan", "mine:task", "--cluster", CLUSTER, "--out", step, "--json"])
    assert json.loads(made.out)["ranks"] == 2
    holds("program", json.loads(made.out))
    assert "traced" in made.err
    shown = succeeded(["spmd", "show", step])
    assert "convolution_0 = convolution(" in shown.out

    told = under_torchrun(
        tmp_path,
        2,
        "spmd",
        "train",
        step,
        "mine:task",
        "--steps",
        "3",
        "--accumulate",
        "2",
        "--save-weights",
        str(end),
        "--json",
    )
    holds("losses", json.loads(told))
    losses, state = trained_alone(steps=3, parts=2)
    torch.testing.assert_close(json.loads(told)["losses"], losses, rtol=1e-4, atol=1e-5)
    saved = load_file(end)
    assert saved.keys() == state.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(saved[name], tensor, rtol=1e-3, atol=1e-4)

    assert "torchrun --nproc-per-node" in refused(run(["spmd", "train", step, "mine:task"]))
    assert "mine has no 'nothing'" in refused(run(["spmd", "plan", "mine:nothing", "--cluster", CLUSTER]))
    other = ["spmd", "plan", "mine:task", "--cluster", CLUSTER, "--strategy"]
    assert "one of any, uneven-fsdp" in refused(run([*other, "pipeline"]))


@pytest.mark.nightly
def test_uneven_fsdp_is_planned_and_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(TASK)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(EXAMPLES), *sys.path])
    step, end = tmp_path / "step.json", tmp_path / "end.safetensors"
    fsdp = ["--strategy", "uneven-fsdp", "--out", str(step), "--json"]
    made = run(["spmd", "plan", "mine:task", "--cluster", CLUSTER, *fsdp])
    assert made.code == 0 and json.loads(made.out)["shares"].keys() == {"compute", "state"}
    arguments = ["spmd", "train", str(step), "mine:task", "--steps", "2", "--save-weights", str(end), "--json"]
    told = json.loads(under_torchrun(tmp_path, 2, *arguments))
    losses, state = trained_alone(steps=2, parts=1)
    torch.testing.assert_close(told["losses"], losses, rtol=1e-4, atol=1e-5)
    saved = load_file(end)
    for name, tensor in state.items():
        torch.testing.assert_close(saved[name], tensor, rtol=1e-3, atol=1e-4)
    found = load(step)
    assert [rank["parameter_bytes"] for rank in told["ranks"]] == stored_bytes(found.graph, found.program)


def trained_alone(*, steps: int, parts: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return losses and state of the same training by PyTorch alone, each step on so many batches."""
    task = load_task("mine:task")
    torch.manual_seed(0)
    module = task.build().train()
    optimizer = task.optimizer(list(module.parameters()))
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(0.0)
        for number in range(parts * step, parts * (step + 1)):
            with Masked(number):
                value = task.loss(module, task.batch_of(number)) / parts
            value.backward()
            losses[-1] += value.item()
        optimizer.step()
    return losses, module.state_dict()
