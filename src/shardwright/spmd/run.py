"""Training by a synthesised step under torchrun."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from shardwright.errors import bad
from shardwright.spmd.document import Synthesized
from shardwright.spmd.task import Task
from shardwright.spmd.training import SpmdStep, whole_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step of a run, as all ranks know it."""

    step: int
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What one rank held: bytes of its shards of parameters, and the most bytes on its GPU (0 on a CPU)."""

    parameter_bytes: int
    peak_bytes: int


def train(
    found: Synthesized,
    task: Task,
    *,
    steps: int,
    device: str | None = None,
    seed: int = 0,
    accumulate: int = 1,
    weights: Path | None = None,
    save_weights: Path | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> list[RankMemory]:
    """Train `steps` steps on the ranks that torchrun started and return what each held. A step takes `accumulate`
    batches one after the other and the mean of their gradients.

    The module is built on the first rank alone, with its `seed`, or its state read from the safetensors file `weights`
    by all. `save_weights` gets the unsharded state. `report` is called on the first rank. Raises `SpecError` outside
    torchrun, or where the number of ranks is not that of the program.
    """
    with _group(device) as where:
        step = SpmdStep(found.graph, found.program, names=found.names, device=where, seed=seed)
        if weights is not None:
            step.load(load_file(weights, device="cpu"))
        else:
            step.receive(_initial(task, seed) if dist.get_rank() == 0 else None)
        optimizer = task.optimizer(step.parameters())
        for number in range(1, steps + 1):
            started = time.perf_counter()
            optimizer.zero_grad()
            first = (number - 1) * accumulate
            loss = sum(step(task.batch_of(first + part)).item() for part in range(accumulate)) / accumulate
            _divide_gradients(step, accumulate)
            optimizer.step()
            if dist.get_rank() == 0:
                report(Progress(step=number, loss=loss, seconds=time.perf_counter() - started))
        if save_weights is not None:
            _saved(step.state_dict(), save_weights)
        return _memory(step, where)


def _divide_gradients(step: SpmdStep, parts: int) -> None:
    for parameter in step.parameters() if parts > 1 else ():
        if parameter.grad is not None:
            parameter.grad.div_(parts)


def inside_torchrun() -> bool:
    """Return whether torchrun started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def _group(device: str | None) -> Iterator[torch.device]:
    """Join the other ranks; yield the device of this one, its own GPU if none is named and there are any."""
    if not inside_torchrun():
        raise bad("the ranks", "are not there", "start the training under torchrun")
    if device not in ("cuda", "cpu", None):
        raise bad(f"the device {device}", "is not known", "cuda or cpu")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    where = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    try:
        yield where
    finally:
        dist.destroy_process_group()


def _initial(task: Task, seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return {name: tensor.detach() for name, tensor in whole_state(task.build()).items()}


def _saved(state: dict[str, Tensor], path: Path) -> None:
    """Write the state on the first rank, which alone has it; tied tensors are written under each of their names."""
    if dist.get_rank() == 0:
        temporary = path.with_name(f".{path.name}.tmp")
        save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, temporary)
        os.replace(temporary, path)


def _memory(step: SpmdStep, device: torch.device) -> list[RankMemory]:
    held = sum(parameter.numel() * parameter.element_size() for parameter in step.parameters())
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    every = torch.tensor([[held, peak]] * dist.get_world_size(), device=device)
    rows = [torch.empty_like(every[0]) for _ in every]
    dist.all_gather(rows, every[0])
    return [RankMemory(parameter_bytes=int(row[0]), peak_bytes=int(row[1])) for row in rows]
