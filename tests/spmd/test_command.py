"""`shardwright spmd` from end to end: plan, show, train under torchrun, as a new user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.spmd.reference import Masked

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


def run(folder: Path, *arguments: str, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    start = ["torch.distributed.run", "--nproc-per-node", str(ranks), "-m", "shardwright"] if ranks else ["shardwright"]
    path = os.pathsep.join([*sys.path, str(EXAMPLES)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", *start, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_plan_show_and_train(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TASK)
    made = run(tmp_path, "spmd", "plan", "mine:task", "--cluster", CLUSTER, "--out", "step.json", "--json")
    assert made.returncode == 0, made.stderr
    plan = json.loads(made.stdout)
    assert plan["ranks"] == 2
    assert "traced" in made.stderr

    shown = run(tmp_path, "spmd", "show", "step.json")
    assert shown.returncode == 0, shown.stderr
    assert "convolution_0 = convolution(" in shown.stdout

    trained = run(
        tmp_path, "spmd", "train", "step.json", "mine:task", "--steps", "3", "--save-weights", "end.safetensors",
        "--json", ranks=2,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    told = json.loads(trained.stdout)
    losses, state = trained_alone(tmp_path)
    torch.testing.assert_close(told["losses"], losses, rtol=1e-4, atol=1e-5)
    saved = load_file(tmp_path / "end.safetensors")
    assert saved.keys() == state.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(saved[name], tensor, rtol=1e-3, atol=1e-4)

    alone = run(tmp_path, "spmd", "train", "step.json", "mine:task")
    assert alone.returncode == 2
    assert "torchrun --nproc-per-node" in alone.stderr
    wrong = run(tmp_path, "spmd", "plan", "mine:nothing", "--cluster", CLUSTER)
    assert wrong.returncode == 2
    assert "mine has no 'nothing'" in wrong.stderr


def trained_alone(folder: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return losses and state of the same training by PyTorch alone, in a process that has never seen a trace."""
    sys.path[:0] = [str(folder), str(EXAMPLES)]
    try:
        import mine  # type: ignore[import-not-found]

        task = mine.task()
        torch.manual_seed(0)
        module = task.build().train()
    finally:
        del sys.path[:2]
    optimizer = task.optimizer(list(module.parameters()))
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        with Masked(step):
            value = task.loss(module, task.batch_of(step))
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, module.state_dict()
