"""Every bound of the search is a bound: on time and memory of a layout, on time of an arrangement and of a complete
strategy. Each is compared with all that it stands for."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.cost.samples import context, llama, mixtral, pool
from tests.nightly import nightly
from tests.search import oracle_uniform as oracle
from tests.search.problems import Problem, problems, solved

from shardwright import Job, Space
from shardwright.arrays import places_by_value
from shardwright.cost.context import Context, ShardIndex, shard_index
from shardwright.cost.iteration.batch import Verdict, bound_seconds, bounded, evaluate, exact_seconds, iteration
from shardwright.cost.iteration.moments import fixed_bytes, held_parameters
from shardwright.cost.iteration.orthogonalisation import orthogonalisation_seconds
from shardwright.cost.iteration.room import fits
from shardwright.cost.iteration.step import norm_seconds, tied_embedding_seconds
from shardwright.cost.strategies import COLUMNS, NONE, ZERO1, ZERO3, Layouts, Strategies, strategies
from shardwright.search.space.expand import Axes, axes, layer_variants
from shardwright.search.space.layouts import layouts
from shardwright.search.uniform import bounds as sketch
from shardwright.search.uniform.bounds import layout_bounds, memory_floor, sketch_seconds
from shardwright.search.uniform.completion import starts_of

ROUNDING = 1 + 1e-9


def layouts_of(rows: Strategies) -> Layouts:
    return Layouts(**{name: getattr(rows, name) for name in oracle.LAYOUT})


def arrangement_of(rows: Strategies) -> Strategies:
    """Return the rows without what the search decides only after an arrangement has been bounded."""
    zero = np.zeros(len(rows), dtype=np.int64)
    return replace(
        rows, recompute=zero, recompute_layers=zero, sharding=zero, offload=zero.astype(float),
        overlap_grad=zero.astype(bool), overlap_param=zero.astype(bool),
    )  # fmt: skip


@pytest.mark.parametrize("examples", [10, *nightly([300])])
def test_no_candidate_is_below_the_bounds_of_its_layout_and_arrangement(examples: int):
    many = settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    many(given(problem=problems(most=6000))(bounds_hold))()


def bounds_hold(problem: Problem) -> None:
    where, verdict = solved(problem)
    rows, how = verdict.rows, axes(Space(pins=MappingProxyType(problem.pins)), frozenset())
    if not len(rows):
        return
    index = shard_index(where, rows)
    given_layouts = layouts_of(rows)
    assert (layout_bounds(where, how, given_layouts, index) <= verdict.seconds * ROUNDING).all()
    floor_holds(where, how, verdict, index)

    sketch_holds(where, verdict)
    for shape in places_by_value(rows.pp * 1000 + rows.vpp):
        part = rows.take(shape)
        parts = iteration(where, part, index.of(part), starts_of(where, part))
        bound, exact = bound_seconds(where, part, parts), exact_seconds(where, part, parts)
        assert (bound <= exact * ROUNDING).all()
        if part.pp[0] == 1:
            np.testing.assert_allclose(bound, exact, rtol=1e-12)


def floor_holds(where: Context, how: Axes, verdict: Verdict, index: ShardIndex) -> None:
    """All that fits its host is above the floor of its layout."""
    rows = verdict.rows
    kept = bounded(replace(where, pool=replace(where.pool, memory_bytes=1e18)), rows).fits
    floor = memory_floor(where, how, layouts_of(rows), index)
    assert (floor[kept] <= verdict.peak_bytes[kept] * ROUNDING).all()


def sketch_holds(where: Context, verdict: Verdict) -> None:
    rows, seconds = verdict.rows.take(verdict.fits), verdict.seconds[verdict.fits]
    arranged = arrangement_of(rows)
    assert (sketch_seconds(where, arranged, shard_index(where, rows).of(arranged)) <= seconds * ROUNDING).all()


@pytest.mark.parametrize("inside", [5e9, 50e9])
@pytest.mark.parametrize(("nodes", "gpus"), [(3, 2), (2, 4), (2, 8)])
def test_bounds_hold_where_copies_straddle_machines_with_quick_networks(nodes: int, gpus: int, inside: float):
    """Copies that stand together are slower there, so that no plan may be bounded as if all of its copies were."""
    machines = pool(nodes, gpus, memory_bytes=1e12, intra_bytes_per_second=inside, inter_bytes_per_second=400e9)
    where = context(llama(6, 1024, 16, 16, 4096, 32000), machines, Job(global_batch=30, seq_len=512))
    pins = {"tp": (1,), "cp": (1,), "micro_batch": (1,), "recompute_layers": (1,), "flash": (0,), "offload": (0.0,)}
    verdict = evaluate(where, oracle.candidates(where, pins))
    assert (verdict.rows.dp > gpus // verdict.rows.pp).any()
    sketch_holds(where, verdict)


def test_bounds_hold_where_experts_have_more_copies_than_the_rest():
    """With expert tensor parallelism of 1, ZeRO shards experts over the tensor-parallel ranks too."""
    model = mixtral(24, 4096, 8, 8, 14336, 1000, experts=4, top_k=2)
    machines = pool(1, 8, memory_bytes=1e15, intra_bytes_per_second=1e14, intra_latency_seconds=0.0)
    where = context(model, machines, Job(global_batch=4, seq_len=4096))
    pins = {"tp": (2, 4), "pp": (1,), "etp": (1,), "micro_batch": (1, 4), "overlap_tp": (1,), "flash": (0,)}
    pins |= {"sharding": (0, 1, 3), "recompute_layers": (1, 12, 24)}
    verdict = evaluate(where, oracle.candidates(where, pins))
    rows, how = verdict.rows, axes(Space(pins=MappingProxyType(pins)), frozenset())
    floor_holds(where, how, verdict, shard_index(where, rows))
    tight = (rows.tp * rows.dp // rows.ep > rows.dp) & (rows.sharding == ZERO3) & (rows.recompute == NONE)
    capacities = np.unique(verdict.peak_bytes[tight])
    assert len(capacities) > 2
    for capacity in capacities:
        small = replace(where, pool=replace(where.pool, memory_bytes=float(capacity)))
        sketch_holds(small, replace(verdict, fits=verdict.peak_bytes <= capacity))


LARGE = [
    (llama(48, 4096, 32, 8, 14336, 128256), 8, 30e9),
    (llama(30, 8192, 64, 64, 22016, 32000), 16, 45e9),
    (llama(36, 2048, 16, 16, 8192, 50304, tied_embeddings=True, dropout=True), 4, 8e9),
]


@pytest.mark.parametrize(
    ("model", "nodes", "memory", "optimizer", "framework"),
    [
        *((*each, "adam", "megatron") for each in LARGE),
        (*LARGE[2], "muon", "megatron"),
        *((*each, "adam", "train") for each in LARGE[::2]),
    ],
)
def test_bounds_of_deep_pipelines_hold(model, nodes, memory, optimizer, framework):
    """What small problems cannot have: many micro-batches, ranks and layers, on random strategies that fit."""
    job = Job(global_batch=96, seq_len=4096, optimizer=optimizer, framework=framework)
    where = context(model, pool(nodes, 8, memory_bytes=memory), job)
    rows, how = (
        random_rows(where, np.random.default_rng(len(model.layers)), 400, 8),
        axes(Space(pins=ASKED), frozenset()),
    )
    index = shard_index(where, Strategies.concatenated([rows, layer_variants(where, how, layouts_of(rows))[0]]))
    tried, close = 0, 0
    for shape in places_by_value(rows.pp * 1000 + rows.vpp):
        part = rows.take(shape)
        starts, shards = starts_of(where, part), index.of(part)
        part = part.take(fits(where, part, shards, starts, fixed_bytes(where, part, shards, starts)))
        if not len(part):
            continue
        arranged, parts = arrangement_of(part), iteration(where, part, index.of(part), starts_of(where, part))
        exact, bound = exact_seconds(where, part, parts), bound_seconds(where, part, parts)
        shards = index.of(arranged)
        sketched = sketch_seconds(where, arranged, shards)
        # Waits in the pipeline would cover for a tail that is too long.
        tail = sketch._tail(where, arranged, shards, sketch._split(where, arranged))
        tail += norm_seconds(where, part) + tied_embedding_seconds(where, part)
        assert (tail <= (parts.data_parallel + parts.optimizer) * ROUNDING).all()
        sharded = replace(part, sharding=np.full(len(part), ZERO1))
        turned = orthogonalisation_seconds(
            where, sharded, held_parameters(where, part, index.of(part), starts_of(where, part))
        )
        assert (turned > 0.0).any() == (optimizer == "muon")
        assert (turned[:, 0] <= tail * ROUNDING).all()
        assert (bound <= exact * ROUNDING).all()
        assert (sketched <= exact * ROUNDING).all()
        assert (layout_bounds(where, how, layouts_of(part), index) <= exact * ROUNDING).all()
        tried, close = tried + len(part), close + int((sketched > 0.8 * exact).sum())
    assert tried > 300
    assert close > 0.3 * tried


ASKED = MappingProxyType({"zero_bubble": (0, 1)})


def random_rows(where: Context, rng: np.random.Generator, count: int, each: int) -> Strategies:
    """Return `each` random strategies of `count` random layouts with a pipeline."""
    found = layouts(where, Space())
    found = found.take(found.pp > 1)
    rows = []
    for place in rng.choice(len(found), count, replace=False):
        layout = tuple(int(getattr(found, name)[place]) for name in oracle.LAYOUT)
        choices = oracle.switches(where, {}, layout)
        for _ in range(each):
            picked = [value for choice in choices for value in choice[rng.integers(len(choice))]]
            apart = oracle.schedules(where, ASKED, layout, picked[COLUMNS.index("recompute") - len(layout)])
            rows.append(dict(zip(COLUMNS, (*layout, *picked, apart[rng.integers(len(apart))]), strict=True)))
    return strategies(rows)
