"""Every kind of traffic and buffer has the width of its job: one test a kind, on machines that compute in no time over
links without latency, so that times are as bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cost.samples import BARE, llama, mixtral, pool, row, shard

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.compute.operator_table import OperatorTable
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.step import (
    StageTimes,
    exposed_tails,
    optimizer_seconds,
    sharded_weight_seconds,
    tied_bytes,
    transfers,
)
from shardwright.cost.memory.activations import Activations, layer_activation_bytes
from shardwright.cost.memory.ends import logit_bytes
from shardwright.cost.memory.sizes import gradient_bytes, trained_share
from shardwright.cost.stage.exact import of_pipelines
from shardwright.cost.strategies import UNSHARDED, ZERO1, ZERO2, ZERO3, Strategies, strategies
from shardwright.spec.adapter import Adapter
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.spec.cluster import Gpu
from shardwright.spec.job import Job

DENSE = llama(4, 1024, 16, 8, 4096, 32000)
EXPERTS = mixtral(4, 1024, 16, 8, 2048, 32000, 8, 2)
MACHINES = pool(4, intra_latency_seconds=0.0, inter_latency_seconds=0.0)
BF16 = Job(global_batch=64, seq_len=4096)
FP16, FP32, FP8 = (replace(BF16, precision=name) for name in ("fp16", "fp32", "fp8"))
STORED, ADAPTED = replace(FP8, fp8_storage=True), replace(FP8, adapter=Adapter())
TITAN = replace(FP8, framework="torchtitan", fp8_recipe="tensorwise")
OWN = replace(FP8, framework="train")
TITAN_BLOCKS = replace(TITAN, fp8_recipe="blockwise")


class Instant(Analytic):
    """Computes in no time."""

    def operator_seconds(self, gpu: Gpu, job: Job, operators: OperatorTable) -> Floats:
        return np.zeros_like(operators.flops)


def at(job: Job, **columns) -> tuple[Context, Strategies]:
    model = EXPERTS if columns.get("ep", 1) > 1 else DENSE
    where = Context(model=model, pool=MACHINES, job=job, efficiency=Instant(), measured_overheads=BARE)
    return where, strategies([row(where, **{"flash": True, **columns})])


def widening(job: Job, name: str, **columns) -> float:
    """Return the seconds in a layer table over those of a job in bf16."""
    one, other = (getattr(layer_rows(*at(each, **columns)).table, name)[0, -1] for each in (job, BF16))
    return float(one / other)


@pytest.mark.parametrize(("job", "width"), [(FP32, 2.0), (FP16, 1.0), (FP8, 1.0), (TITAN, 1.0)])
def test_all_reduces_of_tensor_parallel_ranks(job, width):
    assert widening(job, "tp_seconds", tp=4) == pytest.approx(width)


@pytest.mark.parametrize(
    ("job", "gathered"), [(FP32, 2.0), (FP16, 1.0), (FP8, 0.5), (TITAN, 0.5), (OWN, 0.5), (TITAN_BLOCKS, 1.0)]
)
def test_gathers_and_scatters_of_sequence_parallel_ranks(job, gathered):
    """A block gathers three times (input, gradient of its output, input again) and scatters twice; embedding and head
    scatter partial sums, twice each."""
    blocks, ends = 2 * 4, 4
    scattered = 2.0 if job is FP32 else 1.0
    expected = (blocks * (3 * gathered + 2 * scattered) + ends * scattered) / (blocks * 5 + ends)
    assert widening(job, "tp_seconds", tp=4, sequence_parallel=True) == pytest.approx(expected)


@pytest.mark.parametrize(("job", "width"), [(FP32, 2.0), (FP16, 1.0), (FP8, 1.0)])
def test_keys_and_values_on_the_ring(job, width):
    assert widening(job, "cp_seconds", cp=4) == pytest.approx(width)


@pytest.mark.parametrize(("job", "width"), [(FP32, 2.0), (FP16, 1.0), (FP8, 1.0)])
def test_tokens_to_experts_and_back(job, width):
    assert widening(job, "ep_seconds", ep=4, dp=4) == pytest.approx(width)


@pytest.mark.parametrize(("job", "width"), [(FP32, 4.0), (BF16, 2.0), (FP16, 2.0), (FP8, 2.0)])
def test_activations_between_stages(job, width):
    where, rows = at(job, tp=2, pp=2)
    sent = width * job.seq_len * DENSE.hidden / 2
    assert transfers(where, rows)[0, 0] == pytest.approx(sent / where.links.intra_bytes_per_second)


@pytest.mark.parametrize(("job", "width"), [(FP32, 4.0), (BF16, 2.0), (FP8, 2.0), (STORED, 1.0)])
def test_weights_gathered_in_every_pass(job, width):
    """ZeRO-3 gathers what ZeRO-2 has, in both passes."""
    seconds = []
    for sharding in (ZERO2, ZERO3):
        where, rows = at(job, dp=8, sharding=sharding)
        starts, none = np.array([[0, 4]]), np.zeros((1, 1))
        shards = layer_rows(where, rows)
        parts = sharded_weight_seconds(where, rows, shards.table, of_pipelines(shards.row, starts, 4), none, none)
        seconds.append(float(sum(part.sum() for part in parts)))
    assert seconds[1] - seconds[0] == pytest.approx(2 * width * once_seconds(where, rows))


def once_seconds(where: Context, rows: Strategies) -> float:
    """Return the seconds in which eight GPUs of a machine gather one byte of each parameter."""
    parameters = float(layer_rows(where, rows).table.dense[0, -1])
    return parameters * 7 / 8 / where.links.intra_bytes_per_second


@pytest.mark.parametrize(
    ("job", "reduced", "gathered"), [(FP32, 4.0, 4.0), (BF16, 4.0, 2.0), (FP8, 4.0, 2.0), (STORED, 2.0, 1.0)]
)
def test_gradients_and_updated_weights(job, reduced, gathered):
    none, once = np.zeros((1, 1, 1)), np.ones((1, 1))
    times = StageTimes(forward=none, backward=none, recompute=none, weights=none)
    for sharding, found in ((UNSHARDED, (2 * reduced, 0.0)), (ZERO1, (reduced, gathered))):
        _, rows = at(job, dp=8, sharding=sharding)
        reduce, gather = exposed_tails(DENSE, job, rows, times, once)
        assert (float(reduce[0, 0]), float(gather[0, 0])) == found


@pytest.mark.parametrize(("job", "width"), [(FP32, 4.0), (BF16, 4.0), (STORED, 2.0)])
def test_gradients_of_a_tied_embedding(job, width):
    where, rows = at(job, tp=2, pp=2)
    assert tied_bytes(where, rows)[0] == width * DENSE.vocab * DENSE.hidden / 2
    narrow = replace(where, model=replace(DENSE, embedding_width=256))
    assert tied_bytes(narrow, rows)[0] == width * DENSE.vocab * 256 / 2


def test_adapters_alone_are_updated_in_host_memory_and_shared_between_tied_ends():
    dense, none = np.full((1, 1), 8e6), np.zeros((1, 1))
    where, rows = at(FP8, tp=2, pp=2, dp=8, sharding=ZERO1, offload=1.0)
    adapted = replace(where, job=ADAPTED)
    updates = [optimizer_seconds(each, rows, dense, none)[0, 0] for each in (where, adapted)]
    shared = [tied_bytes(each, rows)[0] for each in (where, adapted)]
    for whole, part in (updates, shared):
        assert part == pytest.approx(trained_share(DENSE, ADAPTED) * whole)


@pytest.mark.parametrize(("job", "width"), [(FP32, 8.0), (BF16, 6.0), (STORED, 3.0)])
def test_gradients_and_weights_of_an_offloaded_optimizer(job, width):
    where, rows = at(job, dp=8, sharding=ZERO1, offload=1.0)
    slow = replace(where, pool=replace(MACHINES, gpu=replace(MACHINES.gpu, pcie_bytes_per_second=1e3)))
    found = optimizer_seconds(slow, rows, np.full((1, 1), 8e6), np.zeros((1, 1)))
    assert found[0, 0] == pytest.approx(1e6 * width / (1e3 * 0.8))


def kept(job: Job, **columns) -> Activations:
    return layer_activation_bytes(DENSE, shard(flash=True, **columns), job)


def test_saved_activations():
    """fp32 doubles all but FlashAttention's sums of exponentials, which are fp32 anyway; fp8 halves the inputs of
    products: of the projections before and after attention, where the output of attention stays in 16 bits beside that,
    and of those before and after the non-linearity."""
    layer, wide, narrow = (float(kept(job).kept[1][0]) for job in (BF16, FP32, FP8))
    sums = 4.0 * BF16.seq_len * 16
    assert wide - sums == pytest.approx(2 * (layer - sums))
    assert layer - narrow == pytest.approx(BF16.seq_len * (3 * 1024 + 4096 - 2 * 1024))
    assert kept(FP16).kept[1] == layer
    assert kept(ADAPTED).kept[1] == layer + 2 * BF16.seq_len * 7 * 16  # what A gives, of seven matrices


def test_inputs_of_non_linearities_in_fp8_storage():
    inner = BF16.seq_len * 4096
    assert kept(FP8).kept[1] - kept(STORED).kept[1] == pytest.approx(2 * inner)


def test_layer_inputs_and_gradients_of_activations():
    for name in ("inputs", "gradients"):
        wide, half, low = (np.sum(getattr(kept(job), name)) for job in (FP32, BF16, FP8))
        assert wide == 2 * half == 2 * low


def test_masks_of_dropout_have_a_byte():
    dropped = replace(DENSE, dropout=True)
    for job in (FP32, BF16):
        more = layer_activation_bytes(dropped, shard(flash=True), job).kept[1] - kept(job).kept[1]
        assert more == pytest.approx(2.0 * job.seq_len * DENSE.hidden)


def test_logits():
    one = np.array([1])
    wide, half, low = (logit_bytes(DENSE, job, one, one, one)[0] for job in (FP32, BF16, FP8))
    assert wide - half == pytest.approx(2.0 * BF16.seq_len * DENSE.vocab) and low == half


def test_no_flag_makes_anything_wider_than_16_bits_but_gradients():
    for job in (BF16, FP16, FP8, STORED, ADAPTED, TITAN):
        found = widths_of(job)
        assert max(getattr(found, name) for name in found.__dataclass_fields__ if name != "gradient_reduction") == 2.0


def test_gradients_are_reduced_in_the_type_of_the_passes_unless_the_job_says_fp32() -> None:
    old = replace(FP16, framework="megatron-2021")
    assert widths_of(old).gradient_reduction == 2.0
    for framework in framework_names():
        for job in (replace(precision, framework=framework) for precision in (BF16, FP16, FP32, FP8, STORED)):
            said = replace(job, options=replace(job.options, grad_reduce="fp32"))
            assert widths_of(said).gradient_reduction == 4.0
            assert gradient_bytes(said) >= 4.0
