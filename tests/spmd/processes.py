"""Processes on gloo that train by programs, and what they report."""

from __future__ import annotations

import multiprocessing.connection
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from shardwright.spmd.training import SpmdStep
from shardwright.synthesis import graph as graphs
from shardwright.synthesis import program as programs

J = TypeVar("J")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A program to train by: graph and program as JSON, the unsharded state, a batch."""

    graph: str
    program: str
    state: dict[str, Tensor]
    names: dict[str, str]
    batch: dict[str, Tensor]
    steps: int = 3
    clip: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the first rank reports: losses, gradient norms, the unsharded state afterwards; and the bytes of parameters
    that each rank held."""

    losses: list[float]
    norms: list[float]
    state: dict[str, Tensor]
    held_bytes: list[int]


def train(job: Job, rank: int) -> Outcome:
    """Train by one job on one of its ranks."""
    graph, program = graphs.from_json(job.graph), programs.from_json(job.program)
    step = SpmdStep(graph, program, names=job.names)
    step.receive(job.state if rank == 0 else None)
    optimizer = torch.optim.SGD(step.parameters(), lr=0.1, momentum=0.9)
    losses, norms = [], []
    for _ in range(job.steps):
        optimizer.zero_grad()
        losses.append(float(step(job.batch)))
        norms.append(float(step.clip_gradients(job.clip)))
        optimizer.step()
    held: list[Any] = [None] * program.ranks
    dist.all_gather_object(held, sum(p.numel() * p.element_size() for p in step.parameters()))
    return Outcome(losses=losses, norms=norms, state=step.state_dict(), held_bytes=held)


def run(work: Callable[[J, int], R], jobs: list[J], ranks: int) -> list[R]:
    """Return what the first rank returns of each job, one after another in the same `ranks` processes."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(jobs, Path(folder, "jobs"))
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["shardwright.spmd.training"])
        running: list[Any] = [
            context.Process(target=_work, args=(rank, ranks, folder, work), daemon=True) for rank in range(ranks)
        ]
        for process in running:
            process.start()
        while any(process.is_alive() for process in running) and not any(process.exitcode for process in running):
            multiprocessing.connection.wait([process.sentinel for process in running if process.is_alive()])
        failed = [rank for rank, process in enumerate(running) if process.exitcode]
        for process in running:
            process.kill()
            process.join()
        if failed:
            raise AssertionError("\n".join(path.read_text() for path in sorted(Path(folder).glob("error-*"))))
        found: list[R] = torch.load(Path(folder, "outcomes"), weights_only=False)
        return found


def _work(rank: int, ranks: int, folder: str, work: Callable[[Any, int], Any]) -> None:
    torch.set_num_threads(1)
    try:
        address = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
        jobs: list[Any] = torch.load(Path(folder, "jobs"), weights_only=False)
        outcomes = [work(job, rank) for job in jobs]
        if rank == 0:
            torch.save(outcomes, Path(folder, "outcomes"))
        dist.barrier()
        dist.destroy_process_group()
    except Exception:
        Path(folder, f"error-{rank}").write_text(f"rank {rank}:\n{traceback.format_exc()}")
        raise
