"""The search returns the true optimum where racks are slow to leave, and where layers were measured one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.nightly import examples
from tests.search import oracle_uniform as oracle
from tests.search.problems import Problem, limited, problems, values

from shardwright.arrays import Bools
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.context import Context
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.layers.measured import MeasuredLayers
from shardwright.cost.strategies import Strategies
from shardwright.search.objective import INDIFFERENCE, Objective
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space
from shardwright.search.uniform.search import search
from shardwright.spec.layer_profile import LayerProfile, LayerTimes


def assert_optimal(problem: Problem, where: Context, allowed: Bools, rows: Strategies) -> None:
    free = replace(where, pool=replace(where.pool, memory_bytes=1e15))
    chosen = np.flatnonzero(allowed)
    if not len(chosen):
        return
    verdict = evaluate(free, rows.take(chosen))
    tight = limited(replace(problem, context=where, limit=None), verdict)
    fits = verdict.fits & (verdict.peak_bytes <= tight.pool.memory_bytes)
    cost = values(tight, verdict)[fits]
    objective = Objective(model=tight.model, job=tight.job, pool=tight.pool)
    found = search(tight, Space(pins=problem.pins), Filters(), objective, top=1)
    assert bool(found.ranked) == bool(len(cost))
    if len(cost):
        value, row = found.ranked[0]
        rows = verdict.rows.take(np.flatnonzero(fits))
        ((beyond, rare, least),) = oracle.preferred(where, cost, rows, np.zeros(len(cost), dtype=int), INDIFFERENCE)
        np.testing.assert_allclose(value, least, rtol=1e-9)
        assert not beyond and oracle.rare_switches(where, row)[0] == rare
        assert found.least is not None
        np.testing.assert_allclose(found.least[0], cost.min(), rtol=1e-9)


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck), derandomize=True)
@given(problem=problems(most=4000), rack=st.integers(1, 4), share=st.sampled_from([0.02, 0.2, 0.7]))
def test_with_racks(problem: Problem, rack: int, share: float) -> None:
    pool = problem.context.pool
    leaves = rack * pool.inter_bytes_per_second * share
    where = replace(problem.context, pool=replace(pool, rack_nodes=rack, rack_bytes_per_second=leaves))
    rows = oracle.candidates(where, problem.pins)
    assert_optimal(problem, where, np.ones(len(rows), dtype=bool), rows)


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck), derandomize=True)
@given(problem=problems(most=4000), seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([1.0, 1.5, 10.0]))
def test_with_measured_layers(problem: Problem, seed: int, spread: float) -> None:
    rows = oracle.candidates(problem.context, problem.pins)
    profile = measured(problem.context, rows, np.random.default_rng(seed), spread)
    if profile is None:
        return
    where = replace(problem.context, efficiency=MeasuredLayers(base=Analytic(), profile=profile))
    moe = where.model.has_experts
    sequence = ~rows.sequence_parallel if not moe else np.ones(len(rows), dtype=bool)
    assert_optimal(problem, where, where.timed(rows) & sequence & rows.flash & ~rows.overlap_tp, rows)


def measured(where: Context, rows: Strategies, rng: np.random.Generator, spread: float) -> LayerProfile | None:
    """Return a profile of two thirds of the settings, with times and bytes that vary from layer to layer."""
    pairs = sorted({*zip(rows.tp.tolist(), rows.micro_batch.tolist(), strict=True)})
    positions = len(where.model.layers) + 2

    def column(scale: float) -> tuple[float, ...]:
        return tuple((scale * rng.uniform(1.0, spread, positions)).tolist())

    entries = tuple(
        LayerTimes(
            gpu=where.pool.gpu.name,
            tensor_parallel=tp,
            micro_batch=size,
            forward_seconds=column(1e-3 * size / tp**0.7),
            backward_seconds=column(2e-3 * size / tp**0.7),
            optimizer_seconds=column(1e-5),
            weight_bytes=column(2e7 / tp),
            activation_bytes=column(1e7 * size / tp) if rng.random() < 0.7 else (),
        )
        for tp, size in pairs
        if rng.random() < 2 / 3
    )
    if not entries:
        return None
    return LayerProfile(model="small", seq_len=where.job.seq_len, precision="", entries=entries)
