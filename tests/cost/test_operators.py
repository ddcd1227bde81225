"""What a layer computes agrees with the model's FLOPs; more work never takes less time; stages hold every layer once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cost.samples import gpt, gpu, llama, mixtral, shard

from shardwright import Job, Model, SpecError, load_model
from shardwright.cost.compute.efficiency import Analytic, gemm_flops
from shardwright.cost.compute.flops import iteration_flops, job_flops
from shardwright.cost.compute.launches import launches
from shardwright.cost.compute.operator_table import ATTENTION, BACKWARD, FORWARD, GEMM, Operator, table
from shardwright.cost.compute.operators import (
    CORE,
    FLASH_BACKWARD_FLOPS,
    embedding_operators,
    head_operators,
    layer_operators,
    splits_softmax,
)
from shardwright.cost.stage.exact import of_pipelines
from shardwright.cost.strategies import boundaries
from shardwright.spec.adapter import parse_adapter
from shardwright.spec.catalog.frameworks import framework_has, framework_names

MODELS = ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gemma-2-9b", "qwen2-57b-a14b", "gpt3-175b", "bert-large"]


def operators_of(model: Model, columns, job: Job) -> list[Operator]:
    """Return the operators of the whole model."""
    layers = [operator for layer in model.layers for operator in layer_operators(model, layer, columns, job)]
    return [*embedding_operators(model, columns, job), *layers, *head_operators(model, columns, job)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seq", [2048, 6000])
def test_operators_have_the_flops_of_the_model(name, seq):
    """Forward exactly, but for the router, which the model's count leaves out; the backward of FlashAttention has
    2.5 times the forward's and everything else twice."""
    model, columns, job = load_model(name), shard(micro_batch=2, flash=True), Job(global_batch=2, seq_len=seq)
    operators = operators_of(model, columns, job)
    router = sum(2.0 * 2 * seq * model.hidden * layer.moe.experts for layer in model.layers if layer.moe)
    router *= (len(model.layers) + model.mtp_layers) / len(model.layers) if model.mtp_layers else 1.0

    def total(direction: int, *kinds: int) -> float:
        return sum(float(o.flops[0]) for o in operators if o.direction == direction and o.kind in kinds)

    forward = total(FORWARD, GEMM, ATTENTION)
    assert forward == pytest.approx(iteration_flops(model, 2, seq) / 3 + router, rel=2e-3)
    assert total(BACKWARD, GEMM) == pytest.approx(2 * total(FORWARD, GEMM))
    assert total(BACKWARD, ATTENTION) == pytest.approx(FLASH_BACKWARD_FLOPS * total(FORWARD, ATTENTION))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("adapter", "targets"), [("lora:16", "linear"), ("qlora:64", "attention"), ("dora:8", "q_proj")]
)
def test_operators_beside_frozen_weights_have_the_flops_of_the_job(name, adapter, targets):
    """Frozen products twice, adapters and the scores three times, the router as before and not in the model's count."""
    model, columns = load_model(name), shard(micro_batch=2, flash=True)
    job = Job(global_batch=2, seq_len=2048, adapter=parse_adapter(adapter, targets))
    operators = operators_of(model, columns, job)
    router = sum(2.0 * 2 * 2048 * model.hidden * layer.moe.experts for layer in model.layers if layer.moe)
    products = sum(float(o.flops[0]) for o in operators if o.kind == GEMM and not o.weight_gradient)
    scores = sum(float(o.flops[0]) for o in operators if o.kind == ATTENTION and o.direction == FORWARD)
    assert products + 3 * scores == pytest.approx(job_flops(model, job) + 2 * router, rel=5e-3)


def test_unfused_attention_computes_the_whole_square():
    model, job = llama(2, 1024, 8, 8, 4096, 1000), Job(global_batch=1, seq_len=2048)
    flash, unfused = (
        sum(
            float(o.flops[0])
            for o in operators_of(model, shard(flash=on), job)
            if o.modules & CORE and o.direction == FORWARD
        )
        for on in (True, False)
    )
    assert unfused == pytest.approx(2 * flash)


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    micro_batch=st.integers(1, 8),
    seq=st.sampled_from([16, 512, 1023, 1024, 2048, 4096]),
    precision=st.sampled_from(["fp16", "bf16", "fp32"]),
    framework=st.sampled_from(framework_names()),
)
def test_a_fused_softmax_takes_heads_in_fours(tp, micro_batch, seq, precision, framework):
    """As FusedScaleMaskSoftmax of Megatron-LM decides; in steps of their own scores move three times as much."""
    job = Job(global_batch=8, seq_len=seq, precision=precision, framework=framework)
    (kind,) = gpt(1, 1024, 8).kinds
    ours = shard(tp=tp, micro_batch=micro_batch)
    fuses = framework_has(framework, "fused_softmax") and precision != "fp32"
    able = 16 < seq <= 2048 and seq % 4 == 0 and micro_batch * 8 // tp % 4 == 0
    split = bool(splits_softmax(kind.attention, ours, job, float(seq))[0])
    assert split == (fuses and not able)
    assert not splits_softmax(kind.attention, shard(tp=tp, micro_batch=micro_batch, flash=True), job, float(seq))[0]
    more = [launches(gpt(1, 1024, 8), kind, shard(tp=tp, micro_batch=rows), job)[0] for rows in (micro_batch, 4 * tp)]
    assert more[0] - more[1] == 4.0 * (split and 16 < seq <= 2048 and seq % 4 == 0)


def test_sequence_parallelism_has_two_collectives_where_a_sum_is_one():
    (kind,) = gpt(1, 1024, 8).kinds
    job = Job(global_batch=8, seq_len=1024, framework="megatron")
    alone, summed, scattered = (
        launches(gpt(1, 1024, 8), kind, shard(flash=True, **columns), job)[0]
        for columns in ({}, {"tp": 2}, {"tp": 2, "sequence_parallel": True})
    )
    assert (summed - alone, scattered - alone) == (2.0, 4.0)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "gpt3-175b"])
def test_tensor_and_context_parallel_ranks_share_the_work(name):
    model, job = load_model(name), Job(global_batch=8, seq_len=4096)
    columns = shard(
        4, tp=[1, 4, 2, 8], cp=[1, 1, 4, 1], ep=[1, 1, 1, 8 if "mixtral" in name else 1], etp=[1, 4, 2, 1],
        micro_batch=2, sequence_parallel=[False, True, True, True], flash=True,
    )  # fmt: skip
    layer = table(list(layer_operators(model, model.layers[0], columns, job)))
    work = layer.flops.sum(axis=0) * columns.tp * columns.cp
    np.testing.assert_allclose(work, work[0], rtol=1e-9)


sizes = st.integers(1, 20_000)


def seconds(m, n, k, groups=1.0, job: Job | None = None, kind: int = GEMM, **changes) -> np.ndarray:
    m, n, k, groups = np.broadcast_arrays(*(np.atleast_1d(np.array(value, dtype=float)) for value in (m, n, k, groups)))
    flops, size = 2.0 * m * n * k * groups, 2.0 * (m * k + k * n + m * n) * groups
    operator = Operator(
        kind=kind, direction=FORWARD, m=m, n=n, k=k, groups=groups, flops=flops, bytes=size, low_precision=True
    )
    return Analytic().operator_seconds(gpu(**changes), job or Job(global_batch=1, seq_len=1), table([operator]))[0]


@given(m=sizes, n=sizes, k=sizes, more=st.integers(1, 3000), multiprocessors=st.integers(1, 200))
def test_a_larger_product_is_never_faster(m, n, k, more, multiprocessors):
    first, *larger = seconds(
        [m, m + more, m, m, m], [n, n, n + more, n, n], [k, k, k, k + more, k], [1, 1, 1, 1, 1 + more],
        multiprocessors=multiprocessors,
    )  # fmt: skip
    assert (np.array(larger) >= first).all()


@given(m=sizes, n=sizes, k=sizes, groups=st.integers(1, 64))
def test_no_product_is_faster_than_the_datasheet(m, n, k, groups):
    product = 2.0 * m * n * k * groups
    assert seconds(m, n, k, groups) >= product / 312e12
    assert seconds(m, n, k, groups) >= 2.0 * (m * k + k * n + m * n) * groups / 2.039e12
    made = table([
        Operator(
            kind=GEMM, direction=FORWARD, flops=np.array([product]), bytes=np.zeros(1),
            **{name: np.array([float(size)]) for name, size in (("m", m), ("n", n), ("k", k), ("groups", groups))},
        )
    ])  # fmt: skip
    assert gemm_flops(gpu(), made)[0, 0] >= product


def test_precision_decides_the_peak():
    big = dict(m=8192, n=8192, k=8192)
    times = {p: seconds(**big, job=Job(global_batch=1, seq_len=1, precision=p))[0] for p in ("fp32", "bf16", "fp8")}
    assert times["fp8"] < times["bf16"] < times["fp32"]
    with pytest.raises(SpecError, match="A100 cannot compute in fp8"):
        seconds(**big, job=Job(global_batch=1, seq_len=1, precision="fp8"), peak_flops=(("bf16", 312e12),))


@given(
    layers=st.integers(1, 60), stages=st.integers(1, 12), first=st.integers(0, 60), last=st.integers(0, 60)
)  # fmt: skip
def test_stages_hold_every_layer_once(layers, stages, first, last):
    first, last = (layers, layers) if stages == 1 else (min(first, layers), min(last, layers))
    last = layers - first if stages == 2 else min(last, layers - first)
    starts = boundaries(layers, stages, np.array([first]), np.array([last]))[0]
    counts = np.diff(starts)
    assert starts[0] == 0 and starts[-1] == layers and (counts >= 0).all()
    assert counts[0] == first and (stages == 1 or counts[-1] == last)
    middle = counts[1:-1]
    assert not len(middle) or (middle.max() - middle.min() <= 1 and (np.diff(middle) >= 0).all())
    ranges = of_pipelines(np.zeros(1, dtype=np.int64), starts[None], layers)
    assert ranges.low[0, 0] == 0 and ranges.high[0, -1] == layers + 2
    np.testing.assert_array_equal(ranges.low[0, 1:], starts[1:-1] + 1)
    np.testing.assert_array_equal(ranges.high[0, :-1], starts[1:-1] + 1)


def test_every_position_has_work_in_both_directions():
    job = Job(global_batch=2, seq_len=1024)
    for model in (gpt(2, 1024, 8), mixtral(2, 1024, 8, 4, 3584, 32000, 8, 2)):
        for part in (embedding_operators, head_operators):
            assert {o.direction for o in part(model, shard(), job)} == {FORWARD, BACKWARD}
