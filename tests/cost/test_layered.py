"""Uneven FSDP: its time against a loop over units, its limits, and what shares do to time and memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

import shardwright
from shardwright import check, predict
from shardwright.cost.iteration.layered.seconds import pass_seconds, slots
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.iteration.timeline import events
from shardwright.cost.learned import default_efficiency
from shardwright.cost.network.collectives import OVERLAP_SLOWDOWN
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage

MIXED = "1x4xA100-SXM-40 + 1x4xV100-SXM2"
MODEL = shardwright.load_model("llama-3.2-1b")
Shares = tuple[str, int, int, int, int]  # GPU type, count, rows, micro-batches, state


def layered_plan(
    cluster: str, shares: list[Shares], recompute: Recompute | None = None, waves: int = 1, optimizer: str = "adam"
) -> Plan:
    replicas = []
    for gpu, count, rows, micro_batches, state in shares:
        stage = Stage(
            gpu=gpu,
            tensor_parallel=1,
            context_parallel=1,
            expert_parallel=1,
            expert_tensor_parallel=1,
            layers=((0, len(MODEL.layers)),),
            recompute=recompute or Recompute(),
        )
        replicas.append(Replica(count=count, micro_batches=micro_batches, stages=(stage,), rows=rows, state=state))
    plan = Plan(
        model=MODEL,
        job=shardwright.make_job(
            global_batch=sum(count * rows for _, count, rows, _, _ in shares),
            seq_len=2048,
            precision="fp16",
            optimizer=optimizer,
        ),
        cluster=shardwright.load_cluster(cluster),
        micro_batch=max(replica.sizes(1)[0] for replica in replicas),
        schedule=Schedule(kind="layered", waves=waves),
        replicas=tuple(replicas),
        optimizer=OptimizerPlan(sharding="zero3", parts=sum(count * state for _, count, _, _, state in shares)),
        overlap=Overlap(grad_reduce=True, param_gather=True),
        sequence_parallel=False,
        flash_attention=False,
    )
    assert check(plan) == ()
    return predict(plan)


@given(st.data(), st.integers(3, 6))
def test_the_time_is_that_of_a_walk_over_units(data: st.DataObject, units: int) -> None:
    """The pass through a unit lasts as long as the longer of computing and what runs beside it, and a part more."""
    column = st.lists(st.floats(1e-4, 1.0), min_size=units, max_size=units)
    forward, backward, gather, scatter = (data.draw(column) for _ in range(4))

    def longer(compute: float, moved: float) -> float:
        return max(compute, moved) + OVERLAP_SLOWDOWN * min(compute, moved)

    last = units - 1
    total = gather[0]
    for unit in range(last):
        total += longer(forward[unit], gather[unit + 1])
    total += longer(forward[last] + backward[last], gather[last - 1])
    for unit in reversed(range(last)):
        total += longer(backward[unit], (gather[unit - 1] if unit else 0.0) + scatter[unit + 1])
    total += scatter[0]
    rows = [np.array([each]) for each in (forward, backward, gather, scatter)]
    found = float(pass_seconds(slots(*rows))[0])
    assert found == pytest.approx(total)
    apart = float(pass_seconds(slots(*rows), overlap=False)[0])
    assert apart >= found - 1e-12


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_equal_shares_are_fsdp(optimizer: str) -> None:
    """With equal shares, one micro-batch and nothing to hide, passes, state and update are those of ZeRO-3."""
    layered = layered_plan("1x8xA100-SXM-40", [("A100-SXM-40", 8, 2, 1, 1)], optimizer=optimizer)
    replica = replace(layered.replicas[0], rows=None, state=None)
    plain = replace(layered, schedule=Schedule(), replicas=(replica,), optimizer=OptimizerPlan(sharding="zero3"))
    assert check(plain) == ()
    one, other = layered.predicted, predict(plain).predicted
    for name in ("forward_seconds", "backward_seconds", "optimizer_seconds", "framework_seconds"):
        assert getattr(one.time, name) == pytest.approx(getattr(other.time, name))
    assert one.memory[0][0].optimizer_bytes == other.memory[0][0].optimizer_bytes
    head = MODEL.token_table_parameters + MODEL.hidden  # with the last norm: the largest unit
    assert one.memory[0][0].buffers_bytes == head * 4 / 8, "a GPU's part of a unit's gradients"
    assert one.iteration_seconds == pytest.approx(other.iteration_seconds, rel=0.05)


def test_parts_add_up() -> None:
    plan = layered_plan(MIXED, [("A100-SXM-40", 4, 11, 3, 14), ("V100-SXM2", 4, 5, 5, 11)])
    assert plan.predicted.time.total_seconds == pytest.approx(plan.iteration_seconds)
    assert plan.iteration_seconds >= (plan.predicted.ideal_seconds or 0.0) > 0.0


def test_rows_move_time_and_state_moves_memory() -> None:
    base = layered_plan(MIXED, [("A100-SXM-40", 4, 8, 2, 10), ("V100-SXM2", 4, 8, 2, 10)])
    rows = layered_plan(MIXED, [("A100-SXM-40", 4, 12, 3, 10), ("V100-SXM2", 4, 4, 1, 10)])
    state = layered_plan(MIXED, [("A100-SXM-40", 4, 8, 2, 15), ("V100-SXM2", 4, 8, 2, 5)])
    assert rows.iteration_seconds < 0.8 * base.iteration_seconds
    assert state.iteration_seconds > base.iteration_seconds, "padding of unequal shards has a price"
    before, after = ([row[0] for row in plan.predicted.memory] for plan in (base, state))
    assert after[0].optimizer_bytes == pytest.approx(1.5 * before[0].optimizer_bytes)
    assert after[1].optimizer_bytes == pytest.approx(0.5 * before[1].optimizer_bytes)
    assert after[1].buffers_bytes > 8 * before[1].buffers_bytes, "all parts of weights and gradients go through buffers"
    assert after[0].activations_bytes == before[0].activations_bytes


def test_more_micro_batches_gather_no_more() -> None:
    """Passes go layer by layer: smaller micro-batches cost their own efficiency, but no more communication."""
    few = layered_plan("1x8xA100-SXM-40", [("A100-SXM-40", 8, 8, 2, 1)])
    many = layered_plan("1x8xA100-SXM-40", [("A100-SXM-40", 8, 8, 8, 1)])
    assert many.predicted.time.data_parallel_seconds <= few.predicted.time.data_parallel_seconds * 1.05
    assert many.predicted.memory[0][0].total_bytes < few.predicted.memory[0][0].total_bytes


def test_recomputation_trades_time_for_memory() -> None:
    shares: list[Shares] = [("A100-SXM-40", 4, 8, 2, 10), ("V100-SXM2", 4, 4, 2, 10)]
    kept = layered_plan(MIXED, shares)
    again = layered_plan(MIXED, shares, Recompute(granularity="full", method="uniform", layers=1))
    assert again.iteration_seconds > 1.15 * kept.iteration_seconds
    assert again.predicted.memory[0][0].activations_bytes < 0.3 * kept.predicted.memory[0][0].activations_bytes
    assert again.predicted.time.recompute_seconds > 0.0


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 40))
def test_no_iteration_is_shorter_than_the_computing_of_a_gpu(rows: int, micro_batches: int, state: int) -> None:
    plan = layered_plan(MIXED, [("A100-SXM-40", 4, rows, min(micro_batches, rows), state), ("V100-SXM2", 4, 4, 2, 10)])
    time = plan.predicted.time
    assert time.forward_seconds + time.backward_seconds + time.framework_seconds <= time.total_seconds + 1e-9
    assert all(row[0].total_bytes > 0.0 for row in plan.predicted.memory)


def test_waves_trade_gathers_for_memory() -> None:
    shares: list[Shares] = [("A100-SXM-40", 4, 12, 4, 10), ("V100-SXM2", 4, 6, 4, 10)]
    one, two, four = (layered_plan(MIXED, shares, waves=waves) for waves in (1, 2, 4))
    moved, kept, first = [], [], one.predicted.time.forward_seconds
    for plan in (one, two, four):
        moved.append(plan.predicted.time.data_parallel_seconds)
        kept.append(plan.predicted.memory[0][0].activations_bytes)
        assert plan.predicted.time.forward_seconds == pytest.approx(first)
    assert moved[0] < moved[1] < moved[2]
    assert kept[0] > kept[1] > kept[2]


@pytest.mark.parametrize("waves", [1, 2])
@pytest.mark.parametrize("recompute", [None, Recompute(granularity="full", method="uniform", layers=1)])
def test_the_timeline_takes_all_through_a_unit_before_the_next(waves: int, recompute: Recompute | None) -> None:
    plan = layered_plan(MIXED, [("A100-SXM-40", 4, 12, 6, 3), ("V100-SXM2", 4, 4, 2, 1)], recompute, waves)
    found = mixed_iteration(plan, default_efficiency())
    orders = [times.units for times in found.replicas]
    units = len(MODEL.layers) + 2
    for times, order in zip(found.replicas, orders, strict=True):
        assert order is not None
        assert order.unit.tolist() == [*range(units), *reversed(range(units))] * waves
        assert (order.start_seconds[1:] >= order.end_seconds[:-1] - 1e-12).all()
        busy = float((order.end_seconds - order.start_seconds).sum())
        assert busy == pytest.approx(times.pipeline_seconds)
        assert (order.recompute_seconds > 0).any() == (recompute is not None)
    fast, slow = orders
    assert fast is not None and slow is not None
    # No GPU begins a unit before the slowest has left the one before.
    ends = np.maximum(fast.end_seconds, slow.end_seconds)
    apart = np.arange(1, len(ends)) % (2 * units) != units  # the head goes back at once
    assert (np.minimum(fast.start_seconds, slow.start_seconds)[1:] >= ends[:-1] - 1e-12)[apart].all()
    last = ends.max()
    longest = max(times.busy_seconds for times in found.replicas)
    assert 0.8 * longest < last <= longest + 1e-12  # what is left is the last scatter
    kinds = {event.kind for event in events(plan, found)}
    assert kinds >= {"forward", "backward", "optimizer"} and ("recompute" in kinds) == (recompute is not None)
