"""Compiled layers, and attention through FlexAttention, compute what plain ones do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.nightly import nightly
from tests.runtime.equal import ADAM, require_equal
from tests.runtime.reference import reference_run
from tests.runtime.samples import STEPS, plan_of, replica, stage, tiny_model
from tests.runtime.workers import Case, batch_of, run_cases
from torch.nn.attention.flex_attention import flex_attention

from shardwright.plans.plan import Plan, Recompute
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.attention import Documents, Scoring, alibi_slopes, documents_of, masked_attention
from shardwright.runtime.model.blocks import compiled, layer_forward
from shardwright.runtime.model.chunk import Chunk, forward, table_of
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import initial_values, seeded
from shardwright.runtime.model.parallel import TensorGroup
from shardwright.runtime.model.parameters import unit_parameters
from shardwright.runtime.step.engine import Engine, evaluate, make_engine, run_each_kind, train_step
from shardwright.spec.job import Precision
from shardwright.spec.model import Model

dynamo_reads_gradients = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def engine_of(plan: Plan, layer: Callable[..., torch.Tensor]) -> Engine:
    layout = layout_of(plan)
    return make_engine(
        layout, 0, make_process_groups(layout, 0), details=Details(), recipe=ADAM, initial=seeded(plan.model, 7),
        precision=plan.job.precision, device=torch.device("cpu"), layer=layer,
    )  # fmt: skip


def losses(plan: Plan, layer: Callable[..., torch.Tensor]) -> list[float]:
    engine = engine_of(plan, layer)
    return [train_step(engine, batch_of(engine, step), step).loss for step in range(3)]


PLAN = plan_of(tiny_model(3), replica(stage((0, 3)), micro_batches=2))


@dynamo_reads_gradients
@pytest.mark.filterwarnings("ignore:.*autograd function:DeprecationWarning")
@pytest.mark.parametrize(
    ("precision", "experts"), [("fp32", 0), ("fp8", 0), ("fp16", 4), *nightly([("bf16", 0), ("fp32", 4)])]
)
def test_compiled_layers_train_alike_and_each_kind_is_compiled_once(precision: Precision, experts: int) -> None:
    """In one graph, though weights in 16 bits have gradients in fp32."""
    torch._dynamo.reset()
    plan = replace(PLAN, job=replace(PLAN.job, precision=precision), model=tiny_model(3, experts=experts))
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    told: list[str] = []
    assert losses(plan, compiled(told.append, backend=backend)) == pytest.approx(losses(plan, layer_forward), rel=1e-6)
    assert told == [] and len(graphs) == 1


def under(recompute: Recompute, **dimensions: Any) -> Plan:
    return plan_of(
        tiny_model(3, **dimensions), replica(stage((0, 3), recompute=recompute), micro_batches=2), precision="bf16"
    )


@dynamo_reads_gradients
@pytest.mark.filterwarnings("ignore:.*autograd function:DeprecationWarning")
@pytest.mark.parametrize(
    "plan",
    [
        under(Recompute()),
        under(Recompute(granularity="selective")),
        under(Recompute(granularity="full", method="block", layers=1)),
        under(Recompute(), family="qwen2", experts=4, shared=True),
    ],
    ids=["plain", "selective", "full", "experts"],
)
def test_once_each_kind_of_layer_ran_nothing_is_compiled_and_nothing_has_changed(plan: Plan) -> None:
    """Neither by steps nor by evaluation, with recomputation neither."""
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    engine, plain = (engine_of(plan, layer) for layer in (compiled(pytest.fail, backend=backend), layer_forward))
    run_each_kind(engine, evaluates=True)
    compilations = len(graphs)
    assert compilations == 2, "with gradients and without"
    for step in range(2):
        found, expected = (train_step(each, batch_of(each, step), step) for each in (engine, plain))
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-2)
    assert evaluate(engine, batch_of(engine, 2)) == pytest.approx(evaluate(plain, batch_of(plain, 2)), rel=1e-6)
    assert len(graphs) == compilations


@dynamo_reads_gradients
def test_where_compilation_fails_layers_run_as_they_are_and_this_is_said_once() -> None:
    torch._dynamo.reset()

    def broken(_graph: Any, _inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    told: list[str] = []
    assert losses(PLAN, compiled(told.append, backend=broken)) == losses(PLAN, layer_forward)
    assert len(told) == 1 and "no compiler here" in told[0] and "operator by operator" in told[0]


NARROW, SELECTIVE = tiny_model(3, kv_heads=1), Recompute(granularity="selective")
SPREAD = {
    "experts of one rank": plan_of(tiny_model(2, experts=4), replica(stage((0, 2)), count=2, micro_batches=2)),
    "tp": plan_of(NARROW, replica(stage((0, 3), tp=2), micro_batches=2), sharding="zero1"),
    "tp in parts": plan_of(
        NARROW, replica(stage((0, 3), tp=2), micro_batches=2), sequence_parallel=True, sharding="zero1"
    ),
    "cp": plan_of(NARROW, replica(stage((0, 3), cp=2), micro_batches=2)),
    "cp, selective": plan_of(NARROW, replica(stage((0, 3), cp=2, recompute=SELECTIVE), micro_batches=2)),
    "ep": plan_of(
        tiny_model(2, family="qwen2", experts=4, shared=True), replica(stage((0, 2), ep=2), count=2, micro_batches=2)
    ),
}


@pytest.mark.nightly
@dynamo_reads_gradients
@pytest.mark.parametrize("name", SPREAD)
def test_layers_of_several_ranks_are_compiled_too(name: str) -> None:
    """Forward and backward, by AOTAutograd; the last compiler alone is left out. An error would be one."""
    found = run_cases([Case(name, SPREAD[name], ADAM, backend="aot_eager")], processes=2)
    require_equal(found[name], reference_run(SPREAD[name], ADAM, steps=STEPS, seed=7))


@pytest.mark.nightly
@dynamo_reads_gradients
def test_stages_compile_at_once_and_no_time_limit_of_collectives_runs_out() -> None:
    """One after another, three seconds each, the last stage of three would wait for six until all can vote on a step."""
    plan = plan_of(tiny_model(3), replica(stage((0, 1)), stage((1, 2)), stage((2, 3)), micro_batches=2))
    found = run_cases([Case("slow", plan, ADAM, backend="slow", patience_seconds=4.5)], processes=3)
    require_equal(found["slow"], reference_run(plan, ADAM, steps=STEPS, seed=7))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("queries", "keys"), [(32, 32), (8, 32)])
def test_masked_attention_is_the_same_through_flex_attention(queries: int, keys: int) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, queries, 16), (2, 2, keys, 16), (2, 2, keys, 16))
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    documents = Documents(numbers=torch.arange(80).view(2, 40) // 7)  # 40 positions, of which 32 are keys here
    for window, those in ((5, None), (5, documents), (None, documents)):
        masked = masked_attention(query, key, value, window, those)
        torch.testing.assert_close(masked_attention(query, key, value, window, those, flex_attention), masked)
        far = value.clone()
        if window:
            far[:, :, : max(keys - queries - 4, 0)] = 7.0  # what no query sees
        elif queries < keys:
            far[:, :, :20] = 7.0
        torch.testing.assert_close(masked_attention(query, key, far, window, those), masked)
    assert len(documents.masks) == 2, "all layers share a mask"


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("causal", [True, False])
def test_scores_of_other_kinds_are_the_same_through_flex_attention(causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 32, 16), (2, 2, 32, 16), (2, 2, 32, 16))
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    slopes, sinks = alibi_slopes(4, query.device), torch.randn(4, generator=generator)
    for kind in ({"cap": 1.0}, {"slopes": slopes}, {"sinks": sinks}, {"cap": 2.0, "slopes": slopes, "sinks": sinks}):
        scoring = Scoring(causal=causal, scale=0.3, **kind)
        masked = masked_attention(query, key, value, 9, None, scoring=scoring)
        found = masked_attention(query, key, value, 9, None, flex_attention, scoring=scoring)
        torch.testing.assert_close(found, masked)


def test_a_document_is_what_it_is_alone() -> None:
    """The logits of a document do not change with those before it, nor with the sample that it stands in."""
    model = tiny_model(2, vocab=61)
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randint(0, 60, (1, length), generator=generator) for length in (9, 13))
    end = torch.full((1, 1), 60)
    together = torch.cat([first, end, second], dim=1)
    documents = documents_of(together, 60)
    assert documents is not None and documents.numbers.tolist() == [[0] * 10 + [1] * 13]
    whole, alone = hidden(model, together, 60), hidden(model, second, None)
    torch.testing.assert_close(whole[:, 10:], alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(whole[:, :10], hidden(model, together[:, :10], None), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(hidden(model, together, None)[:, 10:], alone, rtol=1e-2, atol=1e-2)


def hidden(model: Model, tokens: torch.Tensor, end: int | None) -> torch.Tensor:
    """Return the output of the last layer."""
    units = range(len(model.layers) + 1)
    parameters = [parameter for unit in units for parameter in unit_parameters(model, unit, model.vocab)]
    positions = torch.arange(tokens.shape[1])
    chunk = Chunk(
        units=tuple(units), weights={p.name: initial_values(p, 7) for p in parameters}, model=model, details=Details(),
        tensor=TensorGroup(), recompute=Recompute(granularity="selective"), positions=positions,
        table=table_of(model, Details(), positions), end=end,
    )  # fmt: skip
    return forward(chunk, tokens, documents=documents_of(tokens, end))


def test_the_compiler_is_loaded_where_layers_are_compiled_alone() -> None:
    """It takes a process as long as all the rest of PyTorch."""
    loaded = "import sys, shardwright.runtime.job.train; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0
