"""Training by a synthesised step under torchrun."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from shardwright.errors import SpecError, bad
from shardwright.files import replacing
from shardwright.records import record
from shardwright.spmd import checkpoint
from shardwright.spmd.check import require_elementwise
from shardwright.spmd.document import Synthesized
from shardwright.spmd.task import Task
from shardwright.spmd.trace import user_code
from shardwright.spmd.training import SpmdStep, whole_state

BAD_INPUT = 2  # the exit status that the command line gives the rank that tells


@record
class Progress:
    """One step of a run, as all ranks know it."""

    step: int
    loss: float
    seconds: float


@record
class RankMemory:
    """What one rank held: bytes of its shards of parameters, and the most bytes on its GPU (0 on a CPU)."""

    parameter_bytes: int
    peak_bytes: int


@record
class Course:
    """What a run goes by from step to step. Of a step, `accumulate` batches go one after the other, and the mean of
    their gradients counts; their norm over all ranks is at most `clip` (0: as it is). `rate(step)`, from 0, is what is
    multiplied with the learning rates of the optimizer."""

    accumulate: int = 1
    clip: float = 0.0
    rate: Callable[[int], float] = lambda _: 1.0


@record
class Checkpoints:
    """Where checkpoints go, after every so many steps (0: at the end alone) and how many stay (0: all); `resume` is a
    folder of them, or one, to go on from, `settings` what they say the run was told."""

    out: Path | None = None
    every: int = 0
    keep: int = 2
    resume: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def train(
    synthesized: Synthesized,
    task: Task,
    *,
    steps: int,
    device: str | None = None,
    seed: int = 0,
    course: Course | None = None,
    checkpoints: Checkpoints | None = None,
    weights: Path | None = None,
    save_weights: Path | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> list[RankMemory]:
    """Train up to step `steps` on the ranks that torchrun started and return what each held.

    The module is built on the first rank alone, with its `seed`, or its state read from the safetensors file `weights`
    by all; a run that is resumed goes on as if it had not been interrupted. `save_weights` gets the unsharded state.
    `report` is called on the first rank. Raises `SpecError` outside torchrun, where the number of ranks is not that of
    the program, and where the task's own functions fail: on the rank where that happens first, the others exit.
    """
    course, kept = course or Course(), checkpoints or Checkpoints()
    with _group(device) as where, _told_once():
        step = SpmdStep(synthesized.graph, synthesized.program, names=synthesized.names, device=where, seed=seed)
        require_elementwise(task, synthesized.graph, where)
        with user_code("the task's `optimizer` fails"):
            optimizer = task.optimizer_of(step.named_parameters())
        first = _begin(step, optimizer, task, seed, weights, kept.resume, course)
        if kept.out is not None and kept.resume is not None and dist.get_rank() == 0:
            for folder in checkpoint.give_up(kept.out, first):
                print(f"warning: a later step is given up and is kept as {folder}", file=sys.stderr, flush=True)
        rates = [group["lr"] for group in optimizer.param_groups]
        for number in range(first, steps):
            started = time.perf_counter()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * course.rate(number)
            loss = _stepped(step, optimizer, task, number, course)
            if dist.get_rank() == 0:
                report(Progress(step=number + 1, loss=loss, seconds=time.perf_counter() - started))
            last = number + 1 == steps
            if kept.out is not None and (last or (kept.every and (number + 1) % kept.every == 0)):
                checkpoint.save(step, optimizer, kept.out, number + 1, kept.settings, kept.keep)
        if save_weights is not None:
            _saved(step.state_dict(), save_weights)
        return _memory(step, where)


def _begin(
    step: SpmdStep, optimizer: torch.optim.Optimizer, task: Task, seed: int, weights: Path | None,
    resume: Path | None, course: Course,
) -> int:  # fmt: skip
    """Give a rank its weights, and all that a checkpoint has; return the step to begin with."""
    if resume is not None:
        manifest = checkpoint.opened(resume)
        checkpoint.restore(step, optimizer, manifest)
        step.steps = manifest.step * course.accumulate
        return manifest.step
    if weights is not None:
        step.load(load_file(weights, device="cpu"))
    else:
        step.receive(_initial(task, seed) if dist.get_rank() == 0 else None)
    return 0


def _stepped(step: SpmdStep, optimizer: torch.optim.Optimizer, task: Task, number: int, course: Course) -> float:
    optimizer.zero_grad()
    loss = 0.0
    for part in range(course.accumulate):
        with user_code("the task's `batches` fails"):
            batch = task.batch_of(number * course.accumulate + part)
        loss += step(batch).item() / course.accumulate
    for parameter in step.parameters() if course.accumulate > 1 else ():
        if parameter.grad is not None:
            parameter.grad.div_(course.accumulate)
    if course.clip:
        step.clip_gradients(course.clip)
    optimizer.step()
    return loss


def inside_torchrun() -> bool:
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


@contextmanager
def _told_once() -> Iterator[None]:
    """Let the rank that fails first say why, and say which it is; the others, whose neighbours are gone, exit."""
    try:
        yield
    except Exception as error:
        if dist.distributed_c10d._get_default_store().add("shardwright: ranks that failed", 1) > 1:
            raise SystemExit(BAD_INPUT) from None
        rank = f"rank {dist.get_rank()}"
        if isinstance(error, SpecError):
            problems = (
                replace(problem, path=f"{rank}: {problem.path}" if problem.path else rank) for problem in error.problems
            )
            raise SpecError(*problems) from error
        if isinstance(error, torch.OutOfMemoryError):
            hint = "plan for fewer rows and train with `accumulate=`, or with `strategy=uneven-fsdp`"
            raise bad(rank, f"its GPU is out of memory: {str(error).splitlines()[0]}", hint) from error
        raise


def _initial(task: Task, seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return {name: tensor.detach() for name, tensor in whole_state(task.module()).items()}


def _saved(state: dict[str, Tensor], path: Path) -> None:
    """Write the state on the first rank, which alone has it; tied tensors are written under each of their names."""
    if dist.get_rank() == 0:
        with replacing(path) as temporary:
            save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, temporary)


def _memory(step: SpmdStep, device: torch.device) -> list[RankMemory]:
    held = sum(parameter.numel() * parameter.element_size() for parameter in step.parameters())
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    every = torch.tensor([[held, peak]] * dist.get_world_size(), device=device)
    rows = [torch.empty_like(every[0]) for _ in every]
    dist.all_gather(rows, every[0])
    return [RankMemory(parameter_bytes=int(row[0]), peak_bytes=int(row[1])) for row in rows]
