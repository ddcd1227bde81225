"""Uneven FSDP as a program on real processes: the numbers of one device, in the memory that was planned for each rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from tests.spmd.models import SEQUENCE, VOCABULARY, Bert, next_token
from tests.spmd.peaks import Peak
from tests.spmd.processes import run
from tests.spmd.steps import Traced, require_part, run_on, traced_module
from tests.synthesis.clusters import unequal

from shardwright.spmd.fabric import ProcessFabric
from shardwright.spmd.training import SpmdStep
from shardwright.synthesis.baselines import STRATEGIES
from shardwright.synthesis.graph import COMPUTE, STATE, Sharded
from shardwright.synthesis.program import Program
from shardwright.synthesis.synthesize import synthesize

SLOW_BYTES = 7e5  # of the memory of each of the slow GPUs, which would hold 7.6e5 with even parts


@dataclass(frozen=True, kw_only=True)
class Job:
    """A traced model in a file, and its program."""

    file: Path
    program: Program


def work(job: Job, rank: int) -> list[int]:
    """Hold what this rank's step leaves against the module's, and return the most bytes that each rank holds in steps
    with an optimizer."""
    case: Traced = torch.load(job.file, weights_only=False)
    fabric = ProcessFabric(job.program.notes["machines"])
    require_part(case, job.program, rank, run_on(fabric, case, job.program))
    inputs = {name: case.leaves[ref.node] for name, ref in case.graph.inputs.items()}
    with Peak() as seen:
        step = SpmdStep(case.graph, job.program, fabric=fabric)
        optimizer = torch.optim.AdamW(step.parameters(), foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            step(inputs)
            optimizer.step()
    most: list[int] = [0] * job.program.ranks
    dist.all_gather_object(most, seen.most)
    return most


def deep() -> Traced:
    """Return a model whose state is most of what is held: of a block there are buffers, however many blocks there are."""
    torch.manual_seed(7)
    tokens = torch.randint(VOCABULARY, (6, SEQUENCE))
    module = Bert(width=32, heads=4, layers=10, dropout=0.0).train()
    return traced_module(module, {"tokens": tokens, "labels": tokens}, next_token)


def test_uneven_fsdp_on_processes_equals_the_module_in_the_memory_planned(tmp_path: Path) -> None:
    case, net = deep(), unequal()
    slow = replace(net.machines[1], device=replace(net.machines[1].device, memory_bytes=SLOW_BYTES))
    program = synthesize(case.graph, replace(net, machines=(net.machines[0], slow)), rules=STRATEGIES["uneven-fsdp"])
    shapes = {node.name: node.outputs[0].shape for node in case.graph.nodes if node.op == "parameter"}
    assert all(len(shape) < 2 or _by_state(program, name) for name, shape in shapes.items())
    assert program.shares[COMPUTE] != program.shares[STATE] and len(set(program.shares[STATE])) > 1
    torch.save(case, file := tmp_path / "bert")
    (most,) = run(work, [Job(file=file, program=program)], program.ranks)
    for held, planned in zip(most, program.notes["memory_bytes"], strict=True):
        assert 0.85 * planned <= held <= planned
    assert max(most[2:]) <= SLOW_BYTES < min(most[:2])


def _by_state(program: Program, name: str) -> bool:
    held = program.steps[name].outputs[0]
    return isinstance(held, Sharded) and held.ratio == STATE
