"""A traced graph, run as it is in one process, is the module's own training step."""

from __future__ import annotations

import pytest
import torch
from tests.spmd.models import CASES
from tests.spmd.programs import whole
from tests.spmd.steps import run, traced

from shardwright.synthesis import graph as graphs


@pytest.mark.parametrize("name", CASES)
def test_a_graph_run_whole_is_the_module_s_own_step(name: str) -> None:
    case = traced(name)
    assert graphs.from_json(graphs.to_json(case.graph)) == case.graph
    (found,) = run(case, whole(case.graph))
    assert {name for name in case.expected if name.startswith(("loss", "gradient"))} <= found.keys()
    torch.testing.assert_close(found, {name: case.expected[name] for name in found}, rtol=1e-5, atol=1e-6)
