"""An iteration: no switch that hides communication costs time, recomputation and sharding cost what they repeat or
send, and money is time by price."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.cost.samples import context, gpt, gpu, llama, mixtral, pool, row
from tests.nightly import examples
from tests.search.problems import Problem, problems, some_candidates

from shardwright.cost.context import Context, layer_rows
from shardwright.cost.iteration.batch import evaluate, iteration
from shardwright.cost.iteration.step import HOST_EFFICIENCY, optimizer_seconds, stage_times, transfers
from shardwright.cost.money import dollars_per_hour
from shardwright.cost.network.collectives import PCIE_EFFICIENCY
from shardwright.cost.strategies import (
    BLOCK,
    DATA_OUTERMOST,
    UNIFORM,
    ZERO1,
    ZERO2,
    ZERO3,
    Strategies,
    boundaries,
    strategies,
)
from shardwright.search.objective import Objective
from shardwright.spec.cluster import Price
from shardwright.spec.job import Job

SLOW = pool(4, 8, intra_bytes_per_second=5e9, inter_bytes_per_second=20e9)
JOB = Job(global_batch=48, seq_len=2048)


def changed(rows: Strategies, **columns) -> Strategies:
    return replace(rows, **{name: np.full_like(getattr(rows, name), value) for name, value in columns.items()})


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(problem=problems(most=2000))
def test_overlap_is_never_slower(problem: Problem):
    where, rows = problem.context, some_candidates(problem, 60)
    data = rows.take(rows.dp * rows.cp > 1)
    sharded_states = data.take(data.sharding > 0)
    for part, switch, more in (
        (rows.take(rows.sequence_parallel), "overlap_tp", {}),
        (rows.take((rows.vpp > 1) & (rows.pp > 2)), "overlap_pp", {}),
        (data, "overlap_grad", {"overlap_param": False}),
        (sharded_states, "overlap_param", {"overlap_grad": True}),
    ):
        apart, beside = (evaluate(where, changed(part, **{switch: on}, **more)) for on in (False, True))
        assert (beside.seconds <= apart.seconds * (1 + 1e-12)).all()
        np.testing.assert_array_equal(beside.peak_bytes, apart.peak_bytes)


@given(
    ranks=st.integers(3, 6), chunks=st.integers(2, 3), groups=st.integers(1, 3), hidden=st.sampled_from([256, 2048, 8192]),
    bandwidth=st.integers(24, 44).map(lambda quarter: 10 ** (quarter / 4)), latency=st.sampled_from([1e-6, 1e-4, 1e-2]),
    near=st.booleans(), extra=st.integers(0, 5),
)  # fmt: skip
@settings(max_examples=examples(60), deadline=None)
def test_overlapped_transfers_are_never_slower(ranks, chunks, groups, hidden, bandwidth, latency, near, extra):
    """However much longer than the computation: the slowdown is part of what a transfer takes, not on top of it."""
    machines = pool(
        ranks, 8, inter_bytes_per_second=bandwidth, inter_latency_seconds=latency, intra_bytes_per_second=bandwidth,
        intra_latency_seconds=latency,
    )  # fmt: skip
    model, job = (
        llama(ranks * chunks + extra, hidden, 8, 8, 2 * hidden, 1000),
        Job(global_batch=groups * ranks, seq_len=512),
    )
    where = context(model, machines, job)
    pipeline = dict(pp=ranks, vpp=chunks, tp=1 if near else 8, first_layers=1, last_layers=1, flash=True)
    apart, beside = evaluate(where, strategies([row(where, **pipeline, overlap_pp=on) for on in (False, True)])).seconds
    assert beside <= apart * (1 + 1e-12)


def parts_of(where: Context, rows: Strategies):
    stages = int(rows.pp[0] * rows.vpp[0])
    starts = boundaries(where.layer_count, stages, rows.first_layers, rows.last_layers)
    shards = layer_rows(where, rows)
    return iteration(where, rows, shards, starts), stage_times(where, rows, shards, starts), shards, starts


def test_recomputation_adds_the_forward_pass_of_what_it_repeats():
    where = context(llama(12, 2048, 16, 8, 8192, 32000), pool(1, 8), JOB)
    rows = strategies([
        row(where, pp=4, vpp=1),
        *(row(where, pp=4, recompute=BLOCK, recompute_layers=number) for number in (1, 2, 3)),
        *(row(where, pp=4, recompute=UNIFORM, recompute_layers=number) for number in (1, 3)),
    ])  # fmt: skip
    _, times, shards, _ = parts_of(where, rows)
    layer = (shards.table.forward[:, 2] - shards.table.forward[:, 1])[shards.row]
    for place, layers in enumerate((0, 1, 2, 3, 3, 3)):
        np.testing.assert_allclose(times.recompute[place], layers * layer[place])
        np.testing.assert_allclose(times.backward[place] - times.backward[0], layers * layer[place], atol=1e-12)
    np.testing.assert_array_equal(times.forward, times.forward[:1] * np.ones((6, 1, 1)))


@pytest.mark.parametrize("model", [gpt(4, 1024, 8), mixtral(4, 1024, 8, 8, 2048, 1000, 4, 2)])
def test_stages_share_all_the_time_of_the_model(model):
    where = context(model, pool(1, 8), JOB)
    whole = parts_of(where, strategies([row(where)]))[1]
    for pp, vpp in ((2, 1), (4, 1), (2, 2)):
        times = parts_of(where, strategies([row(where, pp=pp, vpp=vpp)]))[1]
        assert times.forward.shape == (1, vpp, pp)
        assert times.forward.sum() == pytest.approx(whole.forward.sum())
        assert times.backward.sum() == pytest.approx(whole.backward.sum())


def test_sharding_the_state_of_a_single_copy_changes_nothing():
    where = context(llama(4, 2048, 16, 8, 8192, 32000), pool(1, 8), JOB)
    rows = strategies([row(where, tp=2, pp=2, sharding=sharding) for sharding in (0, ZERO1)])
    verdict = evaluate(where, rows)
    assert verdict.seconds[0] == verdict.seconds[1] and verdict.peak_bytes[0] == verdict.peak_bytes[1]


def test_zero_1_sends_what_an_all_reduce_sends_and_updates_a_part():
    where = context(llama(4, 2048, 16, 8, 8192, 32000), SLOW, JOB)
    rows = strategies([row(where, dp=16, sharding=sharding) for sharding in (0, ZERO1, ZERO2, ZERO3)])
    parts = parts_of(where, rows)[0]
    # Reduce-scatter of fp32 gradients and all-gather of bf16 weights are 6 bytes a parameter, an all-reduce is 8.
    assert parts.data_parallel[1] == pytest.approx(parts.data_parallel[0] * 6 / 8, rel=1e-9)
    assert parts.data_parallel[2] == pytest.approx(parts.data_parallel[0] * 2 / 8, rel=1e-9)
    assert parts.data_parallel[3] == 0
    each = parts.stages.backward[:, 0, 0]
    assert each[2] - each[1] == pytest.approx(parts.data_parallel[0] / 2, rel=1e-9)
    assert each[3] - each[2] == pytest.approx(parts.data_parallel[0] / 4, rel=1e-9)
    assert parts.optimizer[1] < parts.optimizer[0]


def test_experts_are_reduced_over_their_own_copies():
    """Sixteen GPUs with ep = 16 hold every expert once; only the rest of the gradients is reduced."""
    where = context(mixtral(4, 1024, 16, 16, 4096, 1000, 16, 2), SLOW, JOB)
    rows = strategies([row(where, dp=16, ep=ep) for ep in (1, 16)])
    spread, alone = parts_of(where, rows)[0].data_parallel
    dense = where.model.parameters - 4 * where.model.expert_layer_parameters(where.model.layers[0])
    assert alone / spread == pytest.approx(dense / where.model.parameters, rel=0.05)


def test_offloading_half_of_the_state_is_faster_than_all_and_slower_than_none():
    where = context(llama(4, 2048, 16, 8, 8192, 32000), pool(1, 8, gpu=gpu(pcie_bytes_per_second=20e9)), JOB)
    rows = strategies([row(where, dp=8, sharding=ZERO1, offload=part) for part in (0.0, 0.5, 1.0)])
    update = optimizer_seconds(where, rows, np.full((3, 1), 1e9), np.zeros((3, 1)))[:, 0]
    assert (np.diff(update) > 0).all()
    assert update[2] == pytest.approx(2 * update[1])
    assert (np.diff(evaluate(where, rows).peak_bytes) < 0).all()


@pytest.mark.parametrize(
    ("framework", "sharding", "up", "down", "summed"),
    [  # bytes a parameter of a rank's eighth: weights for a pass, gradients after it, gradients added up on the host
        ("megatron", ZERO3, 0.0, 0.0, 0.0),
        ("deepspeed", ZERO2, 0.0, 2.0 + 2.0, 0.0),
        ("deepspeed", ZERO3, 0.0, 2.0 + 2.0, 0.0),
        ("fsdp", ZERO2, 0.0, 4.0, 12.0),
        ("fsdp", ZERO3, 4.0, 4.0, 12.0),
        ("torchtitan", ZERO3, 4.0, 4.0, 12.0),
    ],
)
@pytest.mark.parametrize("batch", [8, 48])
def test_what_follows_state_to_the_host_crosses_pcie_in_every_micro_batch(framework, sharding, up, down, summed, batch):
    machines = pool(1, 8, gpu=gpu(pcie_bytes_per_second=1e9), host_memory_bytes_per_second=8e9)
    where = context(llama(4, 2048, 16, 8, 8192, 32000), machines, replace(JOB, global_batch=batch, framework=framework))
    rows = strategies([row(where, dp=8, sharding=sharding, offload=part) for part in (0.0, 1.0)])
    parts, eighth = parts_of(where, rows)[0], where.model.parameters / 8
    forward, backward = (np.diff(passes[:, 0, 0])[0] for passes in (parts.stages.forward, parts.stages.backward))
    pcie, host = 1e9 * PCIE_EFFICIENCY, 8e9 / 8 * HOST_EFFICIENCY
    assert forward == pytest.approx(eighth * up / pcie, abs=1e-12)
    assert backward == pytest.approx(eighth * ((up + down) / pcie + (batch > 8) * summed / host), abs=1e-12)


def test_fsdp2_hides_no_gradients_that_it_adds_up_on_the_host():
    machines = pool(1, 8, gpu=gpu(pcie_bytes_per_second=1e9))
    for batch, hidden in ((8, True), (16, False)):
        where = context(
            llama(4, 2048, 16, 8, 8192, 32000), machines, replace(JOB, global_batch=batch, framework="fsdp")
        )
        both = {"dp": 8, "sharding": ZERO3, "overlap_param": True, "offload": 1.0}
        rows = strategies([row(where, **both, overlap_grad=beside) for beside in (False, True)])
        before, after = parts_of(where, rows)[0].stages.backward[:, 0, 0]
        assert (after < before) is np.bool_(hidden)


def test_the_data_outermost_order_keeps_neighbouring_stages_close():
    where = context(gpt(4, 2048, 16), pool(2, 8), JOB)
    rows = strategies([row(where, tp=2, pp=4, dp=2, rank_order=order) for order in (0, DATA_OUTERMOST)])
    moves = transfers(where, rows)
    assert (moves[1] <= moves[0]).all()
    assert moves[1].max() < moves[0].max()


def test_more_gpus_of_equal_work_are_never_slower():
    where = context(llama(8, 4096, 32, 8, 14336, 32000), pool(1, 8), Job(global_batch=64, seq_len=4096))
    for axis in ("dp", "pp", "tp", "cp"):
        rows = strategies([row(where, **{axis: degree}, flash=True) for degree in (1, 2, 4, 8)])
        assert (np.diff(evaluate(where, rows).seconds) < 0).all()


@given(price=st.floats(0.01, 1000), factor=st.floats(1, 10), gpus=st.integers(1, 64))
def test_money_scales_with_price_and_whole_machines(price, factor, gpus):
    cheap, dear = (dollars_per_hour(pool(8, 8, price=p), np.array([gpus])) for p in (price, price * factor))
    assert cheap == pytest.approx(-(-gpus // 8) * price)
    assert dear == pytest.approx(factor * cheap)


def test_spot_prices_apply_to_spot_pools_and_no_price_to_none():
    both = replace(pool(1, 8), price=Price(on_demand_per_hour=20.0, spot_per_hour=5.0, source="user", date=""))
    assert dollars_per_hour(both, np.array([8])) == 20.0
    assert dollars_per_hour(replace(both, spot=True), np.array([8])) == 5.0
    assert dollars_per_hour(pool(1, 8), np.array([8])) is None


@given(budget=st.floats(10, 1e6), deadline=st.floats(0.1, 1e4), seconds=st.floats(0.01, 100), gpus=st.integers(1, 64))
def test_limits_are_the_budget_and_the_deadline(budget, deadline, seconds, gpus):
    job = Job(global_batch=64, seq_len=2048, tokens=1e9, budget_dollars=budget, deadline_hours=deadline)
    hours = seconds * 1e9 / (64 * 2048) / 3600
    dollars = hours * -(-gpus // 8) * 30.0
    assume(abs(hours / deadline - 1) > 1e-9 and abs(dollars / budget - 1) > 1e-9)
    kept = seconds <= Objective(model=gpt(2, 64, 2), job=job, pool=pool(8, 8, price=30.0)).limits(np.array([gpus]))[0]
    assert kept == (hours <= deadline and dollars <= budget)
