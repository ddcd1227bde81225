"""Uneven FSDP against brute force over every share, its bound, and what limits ask of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost.samples import llama
from tests.nightly import examples, nightly

import shardwright
from shardwright import check, replan
from shardwright.cost.context import Context
from shardwright.cost.iteration.layered.plan import layered_iteration
from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.plans.plan import OptimizerPlan, Plan, Recompute, Replica, Schedule, Stage
from shardwright.search.space.axes import Space, parse_pins
from shardwright.search.uneven.search import UnevenResult, away, uneven_fsdp
from shardwright.search.uneven.shares import FINER, around, grid, parts_of, shares_of

TINY = llama(4, 2048, 16, 16, 5504, 32000)
MODES = (
    Recompute(),
    Recompute(granularity="full", method="block", layers=2),
    Recompute(granularity="full", method="uniform", layers=1),
)


@cache
def contexts(
    cluster: str, batch: int, seq_len: int, memory: tuple[float, ...], optimizer: str = "adam"
) -> tuple[Context, ...]:
    """The types of a cluster, with so much memory on each."""
    job = shardwright.make_job(global_batch=batch, seq_len=seq_len, precision="fp16", optimizer=optimizer)
    pools = shardwright.load_cluster(cluster).pools
    return tuple(
        Context(model=TINY, pool=replace(pool, memory_bytes=each), job=job, efficiency=default_efficiency())
        for pool, each in zip(pools, memory, strict=True)
    )


def cluster_of(found: tuple[Context, ...]) -> shardwright.Cluster:
    return shardwright.Cluster(pools=tuple(context.pool for context in found))


def searched(found: tuple[Context, ...], space: Space | None = None) -> UnevenResult:
    return uneven_fsdp(found, cluster_of(found), space or Space(), lambda plan: True)


def seconds_of(plan: Plan) -> float:
    return predict(plan, default_efficiency()).iteration_seconds


def everything(found: tuple[Context, ...], states: tuple[tuple[int, ...], ...]) -> float:
    """Return the least seconds over all rows, micro-batches, waves, recomputation and given shares of the state: each
    as a plan, costed and weighed like any plan."""
    cluster, job = cluster_of(found), found[0].job
    counts = [context.pool.gpus for context in found]
    known = {context.pool.gpu.name: context for context in found}
    least = np.inf
    for rows in product(range(1, job.global_batch), repeat=len(found)):
        if int(np.dot(rows, counts)) != job.global_batch:
            continue
        for waves in (waves for waves in (1, 2) if waves <= min(rows)):
            ways = [
                [
                    (mode, waves * -(-row // (waves * size)))
                    for mode in MODES
                    for size in (1, 2)
                    if waves * -(-row // (waves * size)) <= row
                ]
                for row in rows
            ]
            for choice, state in product(product(*ways), states):
                replicas = tuple(
                    Replica(
                        count=count,
                        micro_batches=batches,
                        rows=row,
                        state=each,
                        stages=(
                            Stage(
                                gpu=context.pool.gpu.name,
                                tensor_parallel=1,
                                context_parallel=1,
                                expert_parallel=1,
                                expert_tensor_parallel=1,
                                layers=((0, 4),),
                                recompute=mode,
                            ),
                        ),
                    )
                    for context, count, row, each, (mode, batches) in zip(
                        found, counts, rows, state, choice, strict=True
                    )
                )
                plan = Plan(
                    model=TINY,
                    job=job,
                    cluster=cluster,
                    micro_batch=max(replica.sizes(1)[0] for replica in replicas),
                    schedule=Schedule(kind="layered", waves=waves),
                    replicas=replicas,
                    optimizer=OptimizerPlan(sharding="zero3", parts=int(np.dot(state, counts))),
                    overlap=replace(OVERLAP),
                    sequence_parallel=False,
                    flash_attention=True,
                )
                one = layered_iteration(plan, known)
                room = [context.pool.memory_bytes for context in found]
                if all(float(each.peak_bytes[0]) <= most for each, most in zip(one.replicas, room, strict=True)):
                    least = min(least, one.seconds)
    return least


OVERLAP = shardwright.plans.plan.Overlap(grad_reduce=True, param_gather=True)
ROOMY, TIGHT, LOPSIDED = (40e9, 32e9), (9e9, 6.5e9), (12e9, 4.2e9)


@pytest.mark.parametrize(
    ("memory", "optimizer"),
    [(LOPSIDED, "adam"), *nightly([(TIGHT, "adam"), (ROOMY, "adam"), (ROOMY, "muon")])],
)
def test_nothing_that_brute_force_finds_is_better(memory: tuple[float, float], optimizer: str) -> None:
    found = contexts("1x1xA100-SXM-40 + 1x1xV100-SXM2", 4, 1024, memory, optimizer)
    states = ((1, 1), (1, 3), (3, 1), (2, 3))
    best, least = searched(found), everything(found, states)
    assert best.bound <= least
    if not best.plans:
        assert least == np.inf
        return
    plan = best.plans[0]
    assert check(plan) == ()
    assert best.bound <= seconds_of(plan) <= least * 1.005
    memory_rows = predict(plan, default_efficiency()).memory
    assert all(stage.total_bytes <= stage.capacity_bytes for row in memory_rows for stage in row)


def test_small_memory_moves_state_and_rows_apart() -> None:
    """The fast GPU takes the rows; where it cannot hold its half of the state, the slow one holds more of it."""
    found = contexts("1x1xA100-SXM-40 + 1x1xV100-SXM2", 32, 1024, (5e9, 32e9))
    plan = searched(found).plans[0]
    fast, slow = plan.replicas
    assert fast.rows is not None and slow.rows is not None and fast.state is not None and slow.state is not None
    assert fast.rows > slow.rows and fast.state < slow.state


def test_uneven_shares_beat_even_ones() -> None:
    found = contexts("1x2xA100-SXM-40 + 1x2xV100-SXM2", 32, 2048, (40e9, 32e9))
    best = searched(found)
    assert best.even is not None and check(best.even) == ()
    assert {replica.rows for replica in best.even.replicas} == {8}
    assert len({replica.stages[0].recompute for replica in best.even.replicas}) == 1
    assert seconds_of(best.plans[0]) < 0.75 * seconds_of(best.even)


@settings(max_examples=examples(10), deadline=None)
@given(st.integers(4, 40), st.sampled_from([ROOMY, (16e9, 16e9), TIGHT]), st.sampled_from([512, 2048]))
def test_every_plan_is_legal_and_above_the_bound(batch: int, memory: tuple[float, float], seq_len: int) -> None:
    best = searched(contexts("1x3xA100-SXM-40 + 1x1xV100-SXM2", batch, seq_len, memory))
    for plan in best.plans:
        assert check(plan) == ()
        assert seconds_of(plan) >= best.bound * (1.0 - 1e-9)
    if best.plans:
        assert seconds_of(best.plans[0]) <= min(map(seconds_of, best.plans)) * (1.0 + 1e-6)


def test_what_fits_nowhere_has_no_plan() -> None:
    best = searched(contexts("1x1xA100-SXM-40 + 1x1xV100-SXM2", 8, 1024, (3e9, 3e9)))
    assert best.plans == () and best.even is None and best.bound == np.inf


def test_three_types() -> None:
    found = contexts("1x2xH100-SXM + 1x2xA100-SXM-40 + 1x2xV100-SXM2", 48, 1024, (80e9, 40e9, 32e9))
    best = searched(found)
    whole = next(plan for plan in best.plans if len(plan.gpus_by_type) == 3)
    rows = {replica.stages[0].gpu: replica.rows or 0 for replica in whole.replicas}
    assert rows["H100-SXM"] > rows["A100-SXM-40"] > rows["V100-SXM2"]
    assert best.bound <= seconds_of(best.plans[0]) <= 1.2 * best.bound


def test_what_is_left_of_the_machines_is_shared_anew() -> None:
    found = contexts("1x2xA100-SXM-40 + 1x2xV100-SXM2", 32, 1024, ROOMY)
    before, cluster = searched(found).plans[0], cluster_of(found)
    left = replace(cluster, pools=(replace(cluster.pools[0], gpus_per_node=1), cluster.pools[1]))
    one_type = replace(cluster, pools=cluster.pools[1:])
    for machines, gpus in ((left, 3), (one_type, 2)):
        plan = replan(before, machines)
        assert plan is not None and plan.layered and plan.gpus == gpus and check(plan) == ()


def test_pins_are_kept() -> None:
    found = contexts("1x2xA100-SXM-40 + 1x2xV100-SXM2", 32, 1024, ROOMY)
    plan = searched(found, parse_pins(["micro_batch=1", "recompute=full"])).plans[0]
    assert plan.micro_batch == 1
    assert all(replica.stages[0].recompute.granularity == "full" for replica in plan.replicas)
    assert away(parse_pins(["tp=2"])) and away(parse_pins(["sharding=zero1"]))
    assert not away(parse_pins(["tp=1,2", "sharding=zero3"]))


@given(st.integers(1, 4), st.integers(1, 8))
def test_the_grid_is_all_of_the_simplex(types: int, steps: int) -> None:
    points = grid(types, steps)
    wanted = {point for point in product(range(steps + 1), repeat=types) if sum(point) == steps}
    assert {tuple(point) for point in points.tolist()} == wanted and len(points) == len(wanted)


@given(st.lists(st.integers(1, 12), min_size=2, max_size=3), st.data())
def test_parts_are_the_shares_exactly(counts: list[int], data: st.DataObject) -> None:
    steps = 20
    points = grid(len(counts), steps)
    point = points[data.draw(st.integers(0, len(points) - 1))]
    parts, total = parts_of(point, steps, counts)
    assert sum(part * count for part, count in zip(parts, counts, strict=True)) == total
    shares = shares_of(point[None], steps, counts)[0]
    assert np.allclose(np.array(parts) / total, shares)
    finer = around(point, steps)
    assert (finer.sum(axis=1) == steps * FINER).all() and (abs(finer - point * FINER)[:, :-1] <= FINER).all()


def test_waves_take_as_many_rows_as_each_way_allows() -> None:
    """With one row a micro-batch, the rows of every GPU are a multiple of the waves."""
    found = contexts("1x2xA100-SXM-40 + 1x2xV100-SXM2", 32, 1024, ROOMY)
    best = searched(found, parse_pins(["micro_batch=1", "recompute=none"]))
    waves = {plan.schedule.waves for plan in best.plans}
    assert waves == {1, 2, 4, 8}
    for plan in best.plans:
        assert check(plan) == () and plan.micro_batch == 1
        assert all((replica.rows or 0) % (plan.schedule.waves or 1) == 0 for replica in plan.replicas)
