"""What a rank holds, parameters and all that it computes with, follows its share."""

from __future__ import annotations

import torch
from tests.spmd.models import SEQUENCE, VOCABULARY, Bert, next_token
from tests.spmd.peaks import Peak
from tests.spmd.programs import whole
from torch import Tensor

from shardwright.spmd.check import ThreadFabric, on_ranks
from shardwright.spmd.execute import Site, compiled, execute
from shardwright.spmd.shards import RankPlace, cut
from shardwright.spmd.trace import trace
from shardwright.spmd.training import whole_state
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.machines import Device, DeviceMachine, Machines
from shardwright.synthesis.program import Program
from shardwright.synthesis.synthesize import synthesize


def peaks(graph: Graph, program: Program, leaves: dict[str, Tensor]) -> list[int]:
    """Return the most bytes that each rank held, its parameters and inputs among them."""
    code = compiled(graph, program)

    def one(fabric: ThreadFabric) -> int:
        place = RankPlace(rank=fabric.rank, sizes=program.sizes)
        site = Site(place=place, fabric=fabric, device=torch.device("cpu"), seed=0)
        with Peak() as peak:
            parts = {name: cut(x, program.steps[name].outputs[0], place).clone() for name, x in leaves.items()}
            left: dict[str, Tensor] = {}
            execute(code, parts, site, left.__setitem__)
        return peak.most

    return on_ranks(program.ranks, one)


def test_memory_given_back_while_its_tensor_lives_counts_no_more() -> None:
    """As the trainer frees what it gathers for a unit, and takes it again."""
    with Peak() as peak:
        first = torch.zeros(1 << 20)
        first.untyped_storage().resize_(0)
        second = torch.zeros(1 << 20)
        assert peak.most == second.nbytes
        first.untyped_storage().resize_(second.nbytes)
        first.zero_()
        assert peak.most == 2 * second.nbytes


def test_a_rank_holds_what_its_share_needs() -> None:
    module = Bert(width=96, heads=4, layers=3, dropout=0.0)
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (8, SEQUENCE), generator=random)
    batch = {"tokens": tokens, "labels": tokens}
    graph = trace(module, batch, next_token)
    state = whole_state(module)
    leaves = {ref.node: state[name].detach() for name, ref in {**graph.parameters, **graph.buffers}.items()}
    leaves |= {ref.node: batch[name] for name, ref in graph.inputs.items()}
    (alone,) = peaks(graph, whole(graph), leaves)
    limit = 0.8 * 4 * 4 * sum(parameter.numel() for parameter in module.parameters())
    machines = Machines(
        machines=tuple(
            DeviceMachine(
                device=Device(name=name, flops_per_second=rate, memory_bytes=limit), gpus=1, link_bytes_per_second=1e11
            )
            for name, rate in (("fast", 3e9), ("slow", 1e9))
        ),
        network_bytes_per_second=1e11,
    )
    program = synthesize(graph, machines)
    fast, slow = peaks(graph, program, leaves)
    assert slow < 0.6 * alone
    assert slow < fast < 0.9 * alone
