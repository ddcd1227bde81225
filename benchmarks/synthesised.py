"""A synthesised program on processes of unequal speed: what each process reaches, the program, its steps.

Processes are measured before there is a program: the whole step on each alone, for few and for more rows, gives what a
row costs and what a step costs besides; all-reduces of two sizes give latency and bandwidth. Needs PyTorch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

try:
    import torch
    import torch.distributed as dist
except ImportError:
    raise SystemExit(0) from None  # nothing to run without PyTorch

from throttled import PROCESSES, Throttle

from shardwright.spec.model import Model
from shardwright.spmd.fabric import Finish, ProcessFabric, RankFabric
from shardwright.spmd.training import SpmdStep
from shardwright.synthesis.baselines import data_parallel
from shardwright.synthesis.decisions import decisions
from shardwright.synthesis.graph import FREE, Graph
from shardwright.synthesis.machines import Device, DeviceMachine, Machines
from shardwright.synthesis.memory import alone
from shardwright.synthesis.models.transformers import training_step
from shardwright.synthesis.prices import seconds_of
from shardwright.synthesis.program import Program
from shardwright.synthesis.synthesize import synthesize

FEW, MORE, TIMES = 2, 10, 5  # rows of the steps that are measured, and how often
SMALL, LARGE = 1 << 10, 1 << 22  # numbers in the all-reduces that are measured
PATIENCE = 1e-3
ROOM = 0.4  # of what one process would hold alone
BYTES_PER_FLOP = 0.25  # of these processes: about 10 GB/s beside 40 GFLOP/s on one core


@dataclass(frozen=True, slots=True)
class Measured:
    """What a rank reaches: seconds of the compute of a row, of a step besides, and of all-reduces of the two sizes."""

    row_seconds: float
    step_seconds: float
    reduce_seconds: tuple[float, float]


class ThrottledFabric:
    """A `Fabric` before whose collectives the rank pays for what it has computed; what they do is not slowed down."""

    def __init__(self, fabric: RankFabric, throttle: Throttle) -> None:
        self.rank, self.ranks, self._fabric, self._throttle = fabric.rank, fabric.ranks, fabric, throttle

    def all_reduce(self, x: torch.Tensor, *, largest: bool = False, hierarchical: bool = False) -> Finish:
        return self._paid(lambda: self._fabric.all_reduce(x, largest=largest, hierarchical=hierarchical))

    def all_gather(self, part: torch.Tensor, rows: Sequence[int], *, padded: bool) -> Finish:
        return self._paid(lambda: self._fabric.all_gather(part, rows, padded=padded))

    def reduce_scatter(self, whole: torch.Tensor, rows: Sequence[int], *, padded: bool) -> Finish:
        return self._paid(lambda: self._fabric.reduce_scatter(whole, rows, padded=padded))

    def all_to_all(self, parts: Sequence[torch.Tensor], counts: Sequence[int]) -> Finish:
        return self._paid(lambda: self._fabric.all_to_all(parts, counts))

    def _paid(self, send: Callable[[], Finish]) -> Finish:
        self._throttle.pay()
        finish = send()
        self._throttle.start()

        def finished() -> torch.Tensor:
            self._throttle.pay()
            found = finish()
            self._throttle.start()
            return found

        return finished


class Alone:
    """A `Fabric` of one rank, which sends nothing."""

    rank, ranks = 0, 1

    def all_reduce(self, x: torch.Tensor, *, largest: bool = False, hierarchical: bool = False) -> Finish:
        return lambda: x

    def all_gather(self, part: torch.Tensor, rows: Sequence[int], *, padded: bool) -> Finish:
        return lambda: part

    def reduce_scatter(self, whole: torch.Tensor, rows: Sequence[int], *, padded: bool) -> Finish:
        return lambda: whole

    def all_to_all(self, parts: Sequence[torch.Tensor], counts: Sequence[int]) -> Finish:
        return lambda: torch.cat(list(parts))


def measure(rank: int, model: Model, seq_len: int, duties: dict[str, float]) -> Measured:
    """Return what this rank reaches, all ranks at work at once."""
    throttle = Throttle(duty_of(rank, duties), patience=PATIENCE)
    few, more = (_alone_seconds(model, rows, seq_len, throttle) for rows in (FEW, MORE))
    row = (more - few) / (MORE - FEW)
    return Measured(row, max(few - FEW * row, 0.0), tuple(_reduce_seconds(size) for size in (SMALL, LARGE)))


def duty_of(rank: int, duties: dict[str, float]) -> float:
    """Return the part of the time in which a rank works."""
    return duties["fast" if rank < PROCESSES["fast"] else "slow"]


def _alone_seconds(model: Model, rows: int, seq_len: int, throttle: Throttle) -> float:
    graph = training_step(model, batch=rows, seq_len=seq_len, dtype="float32")
    one = DeviceMachine(device=Device(name="one", flops_per_second=1e9), gpus=1, link_bytes_per_second=1e9)
    machines = Machines(machines=(one,), network_bytes_per_second=1e9)
    step = SpmdStep(graph, synthesize(graph, machines, rules=data_parallel), fabric=Alone())
    batch = whole_batch(graph)
    seconds = []
    for _ in range(TIMES + 1):
        dist.barrier()
        begin = time.perf_counter()
        throttle.start()
        step(batch)
        throttle.pay()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:])


def _reduce_seconds(size: int) -> float:
    x, seconds = torch.zeros(size), []
    for _ in range(TIMES + 1):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(x)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:])


def machines_of(model: Model, seq_len: int, found: Sequence[Measured]) -> Machines:
    """Return the processes as machines: at the rates of arithmetic and of memory, in a fixed proportion, with which all
    operators of a row take as long as measured, and with what an operator takes besides; means of each kind."""
    graph = training_step(model, batch=MORE, seq_len=seq_len, dtype="float32")
    space = decisions(graph, ranks=len(found))
    ideal = sum(
        one.weight * float(seconds_of(one, np.array([1e9]), np.array([1e9 * BYTES_PER_FLOP]))[0])
        for one in space.decisions[:-1]
    )
    operators = sum(one.weight for one in space.decisions[:-1] if one.node.op not in FREE)
    machines, first = [], 0
    for name, count in PROCESSES.items():
        kind = found[first : first + count]
        speed = ideal / MORE / statistics.mean(one.row_seconds for one in kind) * 1e9
        device = Device(
            name=name,
            flops_per_second=speed,
            memory_bytes_per_second=speed * BYTES_PER_FLOP,
            operator_seconds=statistics.mean(one.step_seconds for one in kind) / operators,
        )
        machines.append((device, count))
        first += count
    ranks = len(found)
    small, large = (max(one.reduce_seconds[place] for one in found) for place in (0, 1))
    rate = 4.0 * (LARGE - SMALL) * 2 * (ranks - 1) / ranks / max(large - small, 1e-9)
    latency = small / (2 * (ranks - 1))
    return Machines(
        machines=tuple(
            DeviceMachine(device=device, gpus=count, link_bytes_per_second=rate, link_latency_seconds=latency)
            for device, count in machines
        ),
        network_bytes_per_second=rate,
        network_latency_seconds=latency,
        call_seconds=latency,
    )


def roomy_program(model: Model, rows: int, seq_len: int) -> tuple[Graph, Program]:
    """Return a step and a program whose state is shared for lack of memory."""
    graph = training_step(model, batch=rows, seq_len=seq_len, dtype="float32")
    most = float(alone(decisions(graph)).max())
    speeds = {"fast": 2.5e9, "slow": 1e9}
    machines = Machines(
        machines=tuple(
            DeviceMachine(
                device=Device(name=name, flops_per_second=speeds[name], memory_bytes=ROOM * most),
                gpus=count,
                link_bytes_per_second=1e9,
            )
            for name, count in PROCESSES.items()
        ),
        network_bytes_per_second=1e9,
    )
    return graph, synthesize(graph, machines, gap=1e-2)


def program_of(model: Model, rows: int, seq_len: int, machines: Machines) -> tuple[Graph, Program]:
    """Return the step of a model on so many rows, and the fastest program found."""
    graph = training_step(model, batch=rows, seq_len=seq_len, dtype="float32")
    return graph, synthesize(graph, machines, gap=1e-2)


def whole_batch(graph: Graph) -> dict[str, torch.Tensor]:
    """Return random tokens for the inputs of a graph, the same on every rank."""
    nodes, generator = graph.by_name(), torch.Generator().manual_seed(0)
    shapes = {name: nodes[ref.node].outputs[0].shape for name, ref in graph.inputs.items()}
    vocabulary = nodes[graph.parameters["embedding.weight"].node].outputs[0].shape[0]
    return {name: torch.randint(vocabulary, shape, generator=generator) for name, shape in shapes.items()}


def stepper(graph: Graph, found: Program, throttle: Throttle) -> Callable[[int], None]:
    """Return a step of the program on this rank, with AdamW."""
    step = SpmdStep(graph, found, fabric=ThrottledFabric(ProcessFabric(found.notes["machines"]), throttle))
    generator = torch.Generator().manual_seed(1)
    for parameter in step.parameters():
        parameter.data.normal_(std=0.02, generator=generator)
    optimizer, batch = torch.optim.AdamW(step.parameters(), lr=1e-3), whole_batch(graph)

    def run(_: int) -> None:
        throttle.start()
        step(batch)
        throttle.pay()
        optimizer.step()
        optimizer.zero_grad()

    return run
