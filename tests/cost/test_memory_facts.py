"""What frameworks keep beyond the formulas, and how sure a predicted peak is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cost.samples import context, llama, parameter_state, pool, row, shard

from shardwright.cost.context import layer_rows
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.iteration.footprint import footprint
from shardwright.cost.memory.activations import layer_activation_bytes
from shardwright.cost.memory.ends import logit_bytes
from shardwright.cost.memory.facts import fit_probability, headroom, memory_facts, shipped_facts, trial
from shardwright.cost.memory.sizes import least_state_bytes, reserved_bytes, room_for_tensors
from shardwright.cost.strategies import ZERO1, ZERO2, ZERO3, boundaries, strategies
from shardwright.spec.adapter import ATTENTION, Adapter
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.spec.job import Job
from shardwright.spec.options import Options

FRAMEWORKS = framework_names()
MODEL = llama(16, 2048, 32, 32, 8192, 131072)
JOB = Job(global_batch=64, seq_len=4096)


def test_every_framework_has_figures_that_make_sense():
    assert set(shipped_facts()) == set(FRAMEWORKS)
    for facts in shipped_facts().values():
        assert facts.shard_weight in (0.0, 2.0) and 2.0 <= facts.logit <= 16.0
        assert 0.0 < facts.above < 0.3 and 0.0 < facts.below < 0.3 and 0.0 <= facts.fragmentation < 0.1


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("precision", ["bf16", "fp32", "fp8"])
@pytest.mark.parametrize("lean", [False, True])
def test_the_least_state_is_a_floor_for_every_framework(framework, precision, lean):
    job = replace(JOB, framework=framework, precision=precision, fp8_storage=lean and precision == "fp8")
    for ranks in (1, 2, 64):
        for sharding in (ZERO1, ZERO2, ZERO3):
            for working, offload in product((0.0, 0.3), (0.0, 0.25, 1.0)):
                found = parameter_state(MODEL, job, sharding, dense_ranks=ranks, offload=offload, working=working)
                least = least_state_bytes(MODEL, job, np.array([ranks]), np.array([sharding > ZERO1]))
                assert found.weights + found.gradients + found.optimizer >= least - 1e-12


def test_fsdp_shards_16_bytes_and_gathers_bf16_weights_and_gradients():
    """PyTorch's FSDP2 keeps fp32 weights and both moments, reduces in fp32, and casts what it gathers."""
    job = replace(JOB, framework="torchtitan")
    alone = parameter_state(MODEL, job, ZERO3, dense_ranks=8)
    assert alone.weights + alone.gradients + alone.optimizer == pytest.approx(16 / 8)
    working = parameter_state(MODEL, job, ZERO3, dense_ranks=8, working=0.25)
    assert working.weights + working.gradients - alone.weights - alone.gradients == pytest.approx(0.25 * (2 + 2))


def test_frozen_fp8_weights_are_a_byte_each():
    job = replace(JOB, precision="fp8", adapter=Adapter(), fp8_storage=True)
    found = parameter_state(MODEL, job, ZERO1)
    assert found.weights == pytest.approx(1.0, rel=0.02) and found.gradients + found.optimizer < 0.16
    trained = parameter_state(MODEL, replace(job, adapter=None), ZERO1)
    assert trained.weights + trained.gradients + trained.optimizer == pytest.approx(2 + 2 + 12)


def test_adapters_of_attention_keep_no_inputs_of_frozen_feed_forward_weights():
    columns, h, f = shard(), MODEL.hidden, 8192
    full = layer_activation_bytes(MODEL, columns, replace(JOB, seq_len=128)).kept[1][0]
    frozen = layer_activation_bytes(MODEL, columns, replace(JOB, seq_len=128, adapter=Adapter(targets=ATTENTION))).kept[
        1
    ][0]
    assert full - frozen == pytest.approx(128 * 2 * (h + f - 4 * 16))  # and what A gives, of four matrices


def test_a_fused_loss_has_no_logits():
    one = np.ones(1, dtype=np.int64)
    assert logit_bytes(MODEL, JOB, one, one, one)[0] == pytest.approx(memory_facts("megatron").logit * 4096 * 131072)
    assert logit_bytes(MODEL, replace(JOB, fused_loss=True), one, one, one)[0] == 0.0


def test_gathered_states_stay_for_tensor_parallel_ranks_alone():
    where = context(MODEL, pool(1, 8), replace(JOB, framework="nanotron"))
    buffers = []
    for tp in (1, 8):
        rows = strategies([row(where, tp=tp, sequence_parallel=tp > 1)])
        starts = boundaries(where.layer_count, 1, rows.first_layers, rows.last_layers)
        buffers.append(footprint(where, rows, layer_rows(where, rows), starts).buffers[0, 0])
    assert buffers == [0.0, pytest.approx(memory_facts("nanotron").gathered * 4096 * 2048)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_room_is_the_inverse_of_what_is_reserved(framework):
    job = replace(JOB, framework=framework)
    tensors = 3e10
    assert room_for_tensors(job, tensors + float(reserved_bytes(job, np.float64(tensors)))) == pytest.approx(tensors)


@given(st.sampled_from(FRAMEWORKS), st.floats(0.01, 0.99), st.floats(1e9, 1e12))
def test_a_peak_that_fills_the_headroom_fits_with_that_probability(framework, probability, capacity):
    job = replace(JOB, framework=framework)
    peak = capacity * headroom(probability, job)
    assert fit_probability(peak, capacity, job) == pytest.approx(probability, abs=1e-9)
    assert fit_probability(peak * 1.01, capacity, job) < probability
    assert fit_probability(capacity, capacity, job) == pytest.approx(0.5)


def test_a_trial_ends_with_its_block():
    before = memory_facts("megatron")
    with trial({**shipped_facts(), "megatron": replace(before, logit=99.0)}):
        assert memory_facts("megatron").logit == 99.0
    assert memory_facts("megatron") == before


def test_tensors_of_ranks_are_below_the_process():
    where = context(MODEL, pool(1, 8), JOB)
    verdict = evaluate(where, strategies([row(where, pp=4, dp=2), row(where, tp=2, dp=4, sequence_parallel=True)]))
    ends = np.maximum(verdict.first_tensor_bytes, verdict.last_tensor_bytes)
    assert (ends <= verdict.tensor_bytes).all() and (verdict.tensor_bytes < verdict.peak_bytes).all()
    assert verdict.first_tensor_bytes[0] != verdict.last_tensor_bytes[0]
    assert verdict.first_tensor_bytes[1] == verdict.last_tensor_bytes[1] == verdict.tensor_bytes[1]


@pytest.mark.parametrize(("sharding", "on_gpu"), [(ZERO2, 2.0), (ZERO3, 2.0 / 8)])
def test_deepspeed_keeps_16_bit_weights_alone_on_the_gpu_where_state_is_offloaded(sharding, on_gpu):
    """And 16 bytes in host memory: its estimate_zero2_model_states_mem_needs (zero/stage_1_and_2.py) and estimate_zero3_…
    (zero/stage3.py), which add half for buffers, of which the gradients of micro-batches in 16 bits are counted."""
    job = replace(JOB, framework="deepspeed")
    held = parameter_state(MODEL, job, sharding, dense_ranks=8, offload=1.0)
    assert held.weights + held.gradients + held.optimizer == pytest.approx(on_gpu)
    assert held.in_host == pytest.approx((16 + 2) / 8)


@pytest.mark.parametrize(
    ("changes", "in_host"),
    [({}, 16.0), ({"options": Options(master_weights="none")}, 2 + 4 + 4), ({"precision": "fp32"}, 16.0)],
)
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_fsdp2_keeps_only_gathered_layers_on_the_gpu_where_state_is_offloaded(changes, in_host, ranks):
    """CPUOffloadPolicy: weights, gradients and both moments are in host memory, in fp32 unless there are no masters. A
    layer is fetched for its passes, by a single rank too, which has all of it on the GPU otherwise."""
    job = replace(JOB, framework="fsdp", **changes)
    held, half, kept = (
        parameter_state(MODEL, job, ZERO3, dense_ranks=ranks, offload=part, working=0.1) for part in (1.0, 0.5, 0.0)
    )
    several = parameter_state(MODEL, job, ZERO3, dense_ranks=8, offload=1.0, working=0.1)
    assert held.gathered == several.gathered > 0.0 and kept.gathered == (0.0 if ranks == 1 else held.gathered)
    assert held.weights + held.gradients + held.optimizer == pytest.approx(held.gathered)
    assert held.in_host == pytest.approx(in_host / ranks)
    shard = kept.weights - (held.weights if ranks > 1 else 0.0)
    assert half.weights == pytest.approx(shard / 2 + held.weights)
    assert half.in_host == pytest.approx(in_host / ranks / 2)


def test_frozen_weights_go_to_host_memory_with_those_of_fsdp2s_adapters():
    job = replace(JOB, framework="fsdp", adapter=Adapter())
    held, kept = (parameter_state(MODEL, job, ZERO3, dense_ranks=8, offload=part) for part in (1.0, 0.0))
    assert kept.weights == pytest.approx(2 / 8, rel=0.02) and held.weights == 0.0
    assert held.in_host >= kept.weights
