"""No split, order or schedule beats what the bounds of compositions say."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nightly import nightly
from tests.search.mixed.oracle_lines import splits
from tests.search.mixed.problems import Small, small, unlike, varied

from shardwright.cost.network.collectives import gather_seconds
from shardwright.cost.pipeline.schedule import one_f_one_b
from shardwright.cost.pipeline.simulate import simulate
from shardwright.cost.stage.terms import LEAN, WHOLE
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, ZERO1
from shardwright.search.mixed.bounds.capacity import capacity, figures, most_layers, stage_layers, with_ends
from shardwright.search.mixed.bounds.compositions import (
    LEVELS,
    MANY,
    Compositions,
    after,
    alone,
    columns,
    micro_batches,
)
from shardwright.search.mixed.bounds.instance import instances
from shardwright.search.mixed.bounds.travel import layers_in_tail, travel
from shardwright.search.mixed.drafts.split_times import SplitTimes, pipeline_seconds, stages, tails, update_seconds
from shardwright.search.mixed.drafts.splits import moves_of
from shardwright.search.mixed.tables.columns import Table, layers_of
from shardwright.search.mixed.tables.region import Region

MODES = (NONE, SELECTIVE, BLOCK)


def drawn(seed: int, **options: Any) -> Small:
    """Return a random problem: of one model's layers, of other models and jobs, or of layers of several sizes."""
    problem = small(seed, most_layers=8, **options)
    return (problem, varied(problem, seed), unlike(problem, seed))[seed % 3]


def column(forward: np.ndarray, backward: np.ndarray) -> Compositions:
    work = forward + backward
    width = len(LEVELS) + 1
    return Compositions(
        counts=np.array([[len(work)]]),
        stages=np.array([len(work)]),
        bottleneck=np.full((1, width), work.max()),
        work=np.full((1, width), work.sum()),
        first=np.full(
            (1, width), work.sum() - min(len(work) * work.max() - work.sum(), 0.5 * (len(work) - 1) * work.max())
        ),
        after=np.zeros((1, width)),
        share=np.array([min((forward / work).max(), 0.5)]),
        fewest=np.array([1]),
        most=np.array([MANY]),
    )


@given(
    st.lists(st.tuples(st.floats(0.05, 5.0), st.floats(0.05, 5.0)), min_size=1, max_size=9),
    st.integers(1, 40),
)
def test_a_pipeline_finishes_no_more_micro_batches_than_bounded(times, count):
    forward, backward = np.array(times).T
    if len(times) == 1:
        seconds = count * float(forward[0] + backward[0])
    else:
        order = one_f_one_b(len(times), count)
        seconds = float(
            simulate(order, forward[None], backward[None], np.zeros((1, len(times) - 1))).makespan_seconds[0]
        )
    assert micro_batches(column(forward, backward), seconds * (1.0 + 1e-9))[0] >= count


@pytest.mark.parametrize("stages_and_count", [(4, 9), (8, 16), (5, 40)])
def test_the_bound_is_exact_for_equal_stages(stages_and_count):
    depth, count = stages_and_count
    found = column(np.full(depth, 1.0), np.full(depth, 2.0))
    seconds = (count + depth - 1) * 3.0
    assert micro_batches(found, seconds * (1 + 1e-9))[0] == count
    assert micro_batches(found, seconds * 0.999)[0] < count


@pytest.mark.parametrize("seed", [*range(6), *nightly(range(6, 600))])
def test_no_split_has_a_shorter_bottleneck_or_less_work(seed):
    problem = drawn(seed)
    if not problem.tables:
        return
    table, pick = problem.tables[0], np.random.default_rng(seed)
    layers = layers_of(table)
    depth = int(min(table.units.sum(), table.layers))
    total = problem.contexts[0].job.global_batch // problem.settings[0].micro_batch
    copies = int(pick.integers(1, 4))
    region = Region(fewest=copies, most=copies, modes=MODES, link=np.inf, used=())
    for few in (False, True):
        options = {"copies": copies, "depth": max(depth, 2), "longest": 1e9, "few": few, "modes": MODES}
        found = capacity(table, layers, **options)
        for _ in range(40):
            counts = np.array([pick.integers(0, units + 1) for units in table.units])
            if not 2 <= counts.sum() <= depth:
                continue
            kinds = random_order(pick, counts)
            cuts = np.sort(pick.choice(np.arange(1, table.layers), counts.sum() - 1, replace=False))
            starts = np.array([[0, *cuts, table.layers]])
            size = int(pick.integers(1, counts.sum()) if few else total + counts.sum())
            made = stages(table, kinds, starts, micro_batches=size, copies=copies, modes=MODES)
            if not made.fits[0]:
                continue
            bound = columns(table, layers, found, counts[None], region, few=few)
            assert len(bound.counts) == 1, "the split exists, so the composition is possible"
            moves = moves_of(table, kinds)
            around = np.append(moves, 0.0) + np.insert(moves, 0, 0.0)
            each = (made.forward + made.backward)[0] + around
            assert bound.bottleneck[0, 0] <= each.max() * (1 + 1e-9)
            assert bound.work[0, -1] <= each.sum() * (1 + 1e-9)
            seconds = float(pipeline_seconds(made, moves, size)[0])
            level = int(np.searchsorted(bound.bottleneck[0] * (1 - 1e-9), each.max(), side="right")) - 1
            assert micro_batches(bound, (seconds + bound.after[0, level]) * (1 + 1e-9))[0] >= size


@pytest.mark.parametrize("modes", [MODES, (NONE,)])
@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 300))])
def test_a_stage_holds_the_layers_that_it_takes_its_time_for(seed: int, modes: tuple[int, ...]) -> None:
    """Every stage of a split that fits is given at least its own layers within its own seconds; where none of them runs
    again, as many without recomputation."""
    problem = drawn(seed)
    if not problem.tables:
        return
    table, pick = problem.tables[0], np.random.default_rng(seed)
    layers, depth = layers_of(table), int(min(table.units.sum(), table.layers))
    copies = int(pick.integers(1, 4))
    for _ in range(30):
        counts = np.array([pick.integers(0, units + 1) for units in table.units])
        if not 2 <= counts.sum() <= depth:
            continue
        kinds = random_order(pick, counts)
        cuts = np.sort(pick.choice(np.arange(1, table.layers), len(kinds) - 1, replace=False))
        starts = np.array([[0, *cuts, table.layers]])
        size = int(pick.integers(1, 9))
        made = stages(table, kinds, starts, micro_batches=size, copies=copies, modes=modes)
        if not made.fits[0]:
            continue
        moves, place = moves_of(table, kinds), np.arange(len(kinds))
        taken = (made.forward + made.backward)[0] + np.append(moves, 0.0) + np.insert(moves, 0, 0.0)
        flight = np.minimum(size, len(kinds) - place).astype(float)
        of, held = figures(table, layers, copies).take(kinds), np.add.reduceat(layers.weight, starts[0, :-1])
        assert (np.diagonal(stage_layers(of, flight, taken, modes, layers)) >= held - 1e-9).all()
        if modes == (NONE,):
            of = with_ends(of, flight, place == 0, place == len(kinds) - 1)
            left = (taken - of.overhead)[:, None]
            _, free = most_layers(of, left, of.room[:, None], flight[:, None], modes, layers)
            assert (free[:, 0, 0] >= held - 1e-9).all()


@pytest.mark.parametrize("beside", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 300))])
def test_a_stage_leaves_the_seconds_that_its_layers_need_after_the_pipeline(
    seed: int, beside: tuple[bool, bool]
) -> None:
    """By what a stage leaves for gradients, weights and the optimizer, it is given at least its own layers, whether
    gradients travel beside backward passes, weights beside forward passes, both or neither."""
    pins = {"overlap_grad": (beside[0],), "overlap_param": (beside[1],), "sharding": (ZERO1,)}
    problem = drawn(seed, pins=pins)
    if not problem.tables:
        return
    table, pick = problem.tables[0], np.random.default_rng(seed)
    layers, depth = layers_of(table), int(min(table.units.sum(), table.layers))
    for _ in range(40):
        counts = np.array([pick.integers(0, units + 1) for units in table.units])
        if not 2 <= counts.sum() <= depth:
            continue
        copies = int(pick.integers(2, 5))
        region = Region(fewest=copies, most=copies, modes=MODES, link=np.inf, used=())
        kinds = random_order(pick, counts)
        cuts = np.sort(pick.choice(np.arange(1, table.layers), len(kinds) - 1, replace=False))
        starts = np.array([[0, *cuts, table.layers]])
        made = stages(table, kinds, starts, micro_batches=3, copies=copies, modes=MODES)
        left = sum(tails(table, made, gathered(table, kinds, made, copies)))
        left = (left + update_seconds(table, kinds, made, copies))[0] + table.step_seconds[kinds]
        held, slowest = np.add.reduceat(layers.weight, starts[0, :-1]), (made.forward + made.own_backward).max(axis=1)
        for needs in travel(table, layers, region):
            given = np.diagonal([layers_in_tail(needs, kinds, slowest, tail)[0] for tail in left])
            assert (given >= held * (1.0 - 1e-9)).all()


def gathered(table: Table, kinds: np.ndarray, made: SplitTimes, copies: int) -> np.ndarray:
    """Return the seconds to gather the weights of each stage from copies on its own type, in as few domains as hold
    them and as many in each as may be, [1, P]."""
    once = np.zeros_like(made.dense)
    for place, kind in enumerate(kinds):
        local = copies if copies <= table.local[kind] else min(int(table.local[kind]), copies // 2)
        for group, held in zip(table.unit[kind].groups(np.array(copies), np.array(local)), made.weights, strict=True):
            once[:, place] += gather_seconds(table.links_seen(kind), group, held[:, place]) * (held[:, place] > 0)
    return once


def random_order(pick: np.random.Generator, counts: np.ndarray) -> np.ndarray:
    present = list(np.flatnonzero(counts))
    orders = list(permutations(present))
    order = list(orders[int(pick.integers(len(orders)))])
    return np.repeat(np.array(order), counts[order])


@pytest.mark.parametrize("seed", range(12))
def test_a_single_stage_takes_no_less_than_bounded(seed):
    problem = small(seed)
    table = problem.tables[0]
    region = Region(fewest=2, most=2, modes=MODES, link=np.inf, used=())
    bound = alone(table, layers_of(table), region)
    for kind in np.flatnonzero(table.units):
        made = stages(table, np.array([kind]), np.array([[0, table.layers]]), micro_batches=3, copies=2, modes=MODES)
        rows = np.flatnonzero(bound.counts[:, kind])
        if made.fits[0]:
            assert len(rows) == 1
            assert bound.bottleneck[rows[0], 0] <= float((made.forward + made.backward)[0, 0]) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_what_follows_a_pipeline_has_muons_products(seed):
    """The bound rises by as much as any split must have, and stays below all splits."""
    pick, problem = np.random.default_rng(seed), small(seed, optimizer="muon")
    table = problem.tables[0]
    without = replace(table, orthogonal=0.0 * table.orthogonal)
    region = Region(fewest=2, most=2, modes=MODES, link=np.inf, used=())
    counts = pick.multinomial(min(4, table.layers), np.full(table.types, 1.0 / table.types))
    bound, less = (float(after(each, layers_of(each), counts[None], region)[0]) for each in (table, without))
    least = float(table.orthogonal[counts > 0, -1].min()) / 2 / counts.sum()
    assert bound - less > 0.2 * least > 0.0
    kinds = random_order(pick, counts)
    starts = splits(table.layers, len(kinds))
    found = stages(table, kinds, starts, micro_batches=3, copies=2, modes=MODES)
    assert bound <= float((update_seconds(table, kinds, found, 2).max(axis=1)).min()) + float(
        table.norm_seconds(len(kinds) * 2)[0, kinds].max() + table.tied_between(kinds, len(kinds))
    )


def test_recomputation_that_saves_nothing_rules_out_no_layers() -> None:
    table = small(0).tables[0]
    of = figures(table, layers_of(table), 2)
    kept = of.layer.kept[:, [WHOLE, LEAN, WHOLE]]
    of = replace(of, layer=replace(of.layer, kept=kept))
    left, space, flight = (np.full((len(of), 1), value) for value in (1e12, 1e12, 2.0))
    with np.errstate(all="raise"):
        most = [most_layers(of, left, space, flight, modes, layers_of(table))[0] for modes in ((NONE,), (NONE, BLOCK))]
    np.testing.assert_array_equal(*most)
    assert (most[0] > 0.0).all()


@pytest.mark.parametrize("seed", range(8))
def test_there_is_a_bottleneck_to_look_at_however_short_the_time(seed):
    """Rounding put both ends of a range of 1 % outside of it."""
    problem = small(seed)
    for each in instances(problem.settings, problem.tables, problem.contexts[0].job.global_batch, problem.space):
        found = capacity(each.table, each.layers, copies=1, depth=3, longest=1e-9, few=True, modes=each.modes)
        assert len(found.seconds)
