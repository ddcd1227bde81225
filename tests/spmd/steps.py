"""One training step by a program, on ranks that are threads or processes, against the step of the module itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from tests.spmd.models import Batch, Loss, build
from torch import Tensor, nn

from shardwright.spmd.check import eager, on_ranks
from shardwright.spmd.execute import Site, compiled, execute
from shardwright.spmd.fabric import RankFabric
from shardwright.spmd.shards import RankPlace, cut
from shardwright.spmd.trace import trace
from shardwright.spmd.training import whole_state
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.program import Program
from shardwright.synthesis.schedule import ends

SEED = 3


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A model's graph, its parameters, buffers and inputs by the names of their nodes, and what its own step gives."""

    graph: Graph
    leaves: dict[str, Tensor]
    expected: dict[str, Tensor]


@cache
def traced(name: str) -> Traced:
    """Return the case of this name, traced once a process."""
    return traced_module(*build(name))


def traced_module(module: nn.Module, batch: Batch, loss: Loss) -> Traced:
    """Return a module's step and what it gives."""
    graph = trace(module, batch, loss)
    state = {name: tensor.detach() for name, tensor in whole_state(module).items()}
    leaves = {ref.node: state[name] for name, ref in {**graph.parameters, **graph.buffers}.items()}
    leaves |= {ref.node: batch[name] for name, ref in graph.inputs.items()}
    return Traced(graph=graph, leaves=leaves, expected=eager(module, batch, loss, SEED))


def run(case: Traced, program: Program) -> list[dict[str, Tensor]]:
    """Return what the program leaves on each rank, ranks being threads."""
    return on_ranks(program.ranks, lambda fabric: run_on(fabric, case, program))


def run_on(fabric: RankFabric, case: Traced, program: Program) -> dict[str, Tensor]:
    """Return what the program leaves on this rank."""
    place = RankPlace(rank=fabric.rank, sizes=program.sizes)
    site = Site(place=place, fabric=fabric, device=torch.device("cpu"), seed=SEED)
    parts = {name: cut(x, program.steps[name].outputs[0], place) for name, x in case.leaves.items()}
    left: dict[str, Tensor] = {}
    execute(compiled(case.graph, program), parts, site, left.__setitem__)
    return left


def require_equal(case: Traced, program: Program) -> None:
    """Run the program on threads and hold what each rank has against its part of what the module gives."""
    for rank, left in enumerate(run(case, program)):
        require_part(case, program, rank, left)


def require_part(case: Traced, program: Program, rank: int, left: Mapping[str, Tensor]) -> None:
    """Hold what one rank has against its part of what the module gives: the difference's norm is at most 1e-4 of the
    whole tensor's."""
    for name, (_, held) in ends(case.graph, program).items():
        expected = case.expected[name]
        part = cut(expected, held, RankPlace(rank=rank, sizes=program.sizes))
        assert left[name].shape == part.shape
        off = (left[name].double() - part.double()).norm().item()
        assert off <= 1e-4 * expected.double().norm().item() + 1e-6, (name, rank, off)
