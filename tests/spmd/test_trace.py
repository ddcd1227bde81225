"""A traced graph, run as it is in one process, is the module's own training step."""

from __future__ import annotations

import pytest
import torch
from tests.spmd.models import CASES, Batch, build
from tests.spmd.programs import whole
from tests.spmd.ranks import on_ranks
from tests.spmd.reference import reference
from torch import Tensor, nn

from shardwright.spmd.execute import compiled, execute
from shardwright.spmd.local import Site
from shardwright.spmd.shards import Place
from shardwright.spmd.trace import trace
from shardwright.synthesis import graph as graphs


def leaves(graph: graphs.Graph, module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    named = {ref.node: state[name].detach() for name, ref in {**graph.parameters, **graph.buffers}.items()}
    return named | {ref.node: batch[name] for name, ref in graph.inputs.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_graph_run_whole_is_the_module_s_own_step(name: str) -> None:
    module, batch, loss = build(name)
    graph = trace(module, batch, loss)
    assert graphs.from_json(graphs.to_json(graph)) == graph
    expected = reference(module, batch, loss, seed=3)

    program = whole(graph)

    def run(fabric):
        site = Site(place=Place(rank=0, sizes=program.sizes), fabric=fabric, device=torch.device("cpu"), seed=3)
        return execute(compiled(graph, program), leaves(graph, module, batch), site)

    (found,) = on_ranks(1, run)
    assert set(found) <= set(expected)
    assert {name for name in expected if name.startswith(("loss", "gradient"))} <= set(found)
    torch.testing.assert_close(found, {name: expected[name] for name in found}, rtol=1e-5, atol=1e-6)
