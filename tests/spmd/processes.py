"""Processes on gloo that train by programs, and what they report."""

from __future__ import annotations

import pickle
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import torch.distributed as dist
from tests import forked
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


ONE_THREAD = "gloo_of_one_thread"  # instead of two, which run collectives beside each other


def _gloo_of_one_thread(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_default_device()]
    options._threads, options._timeout = 1, timeout
    return gloo(store, rank, size, options)


@contextmanager
def let_go() -> Iterator[None]:
    """Have a wait for a collective end when gloo has also let go of its tensors, on `ONE_THREAD`. Left alone it does so
    a moment later, when its thread comes to it: on a busy machine after the next operators. A thread that comes to a
    barrier has let go of what was before."""
    wait = dist.Work.wait

    def waited(work: dist.Work, *args: Any) -> Any:
        result = wait(work, *args)
        wait(dist.barrier(async_op=True))
        return result

    with patch.object(dist.Work, "wait", waited):
        yield


def run(work: Callable[[J, int], R], jobs: list[J], ranks: int, backend: str = "gloo") -> list[R]:
    """Return what the first rank returns of each job, one after another in the same `ranks` processes."""
    with processes(ranks, backend=backend) as do:
        return [do(work, job) for job in jobs]


@contextmanager
def processes(ranks: int, *, backend: str | None = "gloo") -> Iterator[Callable[[Callable[[J, int], R], J], R]]:
    """Start `ranks` processes that stay, joined to one group of `backend` if there is one; yield a function that has all of them do a job,
    and returns what the first returns. Raises `AssertionError` with the traceback of a rank that fails."""
    context = forked.context()
    with tempfile.TemporaryDirectory() as folder:
        ends = [context.Pipe() for _ in range(ranks)]
        running = [
            context.Process(target=_serve, args=(rank, ranks, backend, folder, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(ends)
        ]
        for process in running:
            process.start()
        pipes = [ours for ours, _ in ends]
        for _, theirs in ends:
            theirs.close()

        def do(work: Callable[[J, int], R], job: J) -> R:
            for pipe in pipes:
                pipe.send_bytes(pickle.dumps((work, job)))
            return _answers(pipes)[0]

        try:
            yield do
        finally:
            for process in running:
                process.kill()
                process.join()


def _answers(pipes: list[Connection]) -> list[Any]:
    """Return the answer of each rank; the first failure is raised, whatever the others wait for."""
    found: dict[int, Any] = {}
    while len(found) < len(pipes):
        for pipe in wait([pipe for rank, pipe in enumerate(pipes) if rank not in found]):
            assert isinstance(pipe, Connection)
            rank = pipes.index(pipe)
            try:
                failed, found[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                raise AssertionError(f"rank {rank} ended") from None
            if failed:
                raise AssertionError(f"rank {rank}:\n{found[rank]}")
    return [found[rank] for rank in range(len(pipes))]


def _serve(rank: int, ranks: int, backend: str | None, folder: str, pipe: Connection) -> None:
    """Do what is asked for, one job after another, until the other end is gone."""
    torch.set_num_threads(1)
    if backend == ONE_THREAD:
        dist.Backend.register_backend(ONE_THREAD, _gloo_of_one_thread, devices=["cpu"])
    if backend is not None:
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    while True:
        work, job = pickle.loads(pipe.recv_bytes())
        try:
            answer: tuple[bool, Any] = (False, work(job, rank))
        except Exception:
            answer = (True, traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))
