"""Compiled layers, and attention through FlexAttention, compute what plain ones do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.runtime.equal import ADAM
from tests.runtime.samples import plan_of, replica, stage, tiny_model
from tests.runtime.workers import batch_of
from torch.nn.attention.flex_attention import flex_attention

from shardwright.plans.plan import Plan
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.blocks import layer_forward
from shardwright.runtime.model.context import WHOLE, ContextGroup
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.model.parallel import ALONE, ExpertGroup, TensorGroup
from shardwright.runtime.model.regions import compiled, why_not_compiled
from shardwright.runtime.model.windows import window_attention
from shardwright.runtime.step.engine import make_engine, train_step

dynamo_reads_gradients = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def losses(plan: Plan, layer: Callable[..., torch.Tensor]) -> list[float]:
    layout = layout_of(plan)
    engine = make_engine(
        layout, 0, make_process_groups(layout, 0), details=Details(), recipe=ADAM, initial=seeded(plan.model, 7),
        dtype=torch.float32, device=torch.device("cpu"), layer=layer,
    )  # fmt: skip
    return [train_step(engine, batch_of(engine, step), step).loss for step in range(3)]


PLAN = plan_of(tiny_model(3), replica(stage((0, 3)), micro_batches=2))


@dynamo_reads_gradients
def test_compiled_layers_train_alike_and_each_kind_is_compiled_once() -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    told: list[str] = []
    assert losses(PLAN, compiled(told.append, backend=backend)) == pytest.approx(losses(PLAN, layer_forward), rel=1e-6)
    assert told == [] and len(graphs) == 1


@dynamo_reads_gradients
def test_where_compilation_fails_layers_run_as_they_are_and_this_is_said_once() -> None:
    torch._dynamo.reset()

    def broken(_graph: Any, _inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    told: list[str] = []
    assert losses(PLAN, compiled(told.append, backend=broken)) == losses(PLAN, layer_forward)
    assert len(told) == 1 and "no compiler here" in told[0] and "operator by operator" in told[0]


def test_layers_that_communicate_are_not_compiled() -> None:
    model, experts = tiny_model(2), tiny_model(2, family="qwen2", experts=4)
    split = ExpertGroup(rank=0, size=2)
    assert why_not_compiled(model, TensorGroup(), split, WHOLE) == ""
    assert "tensor" in why_not_compiled(model, TensorGroup(size=2), ALONE, WHOLE)
    assert "context" in why_not_compiled(model, TensorGroup(), ALONE, ContextGroup(parts=(0, 1)))
    assert "experts" in why_not_compiled(experts, TensorGroup(), split, WHOLE)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("queries", "keys"), [(32, 32), (8, 32)])
def test_attention_to_a_window_is_the_same_through_flex_attention(queries: int, keys: int) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, queries, 16), (2, 2, keys, 16), (2, 2, keys, 16))
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    masked = window_attention(query, key, value, 5)
    torch.testing.assert_close(window_attention(query, key, value, 5, flex_attention), masked)
    far = value.clone()
    far[:, :, : max(keys - queries - 4, 0)] = 7.0  # what no query sees
    torch.testing.assert_close(window_attention(query, key, far, 5), masked)


def test_the_compiler_is_loaded_where_layers_are_compiled_alone() -> None:
    """It takes a process as long as all the rest of PyTorch."""
    loaded = "import sys, shardwright.runtime.job.train; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0
