"""What is said of all splits of a composition, at once or by a list of them, against each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from tests.nightly import nightly
from tests.search.mixed.oracle import MODES
from tests.search.mixed.problems import Small, small, unlike

from shardwright.search.mixed.bounds.capacity import capacity, least_move_seconds
from shardwright.search.mixed.bounds.compositions import Compositions, after, columns
from shardwright.search.mixed.drafts.split_times import SplitTimes, after_seconds, pipeline_seconds, stages
from shardwright.search.mixed.drafts.splits import moves_of
from shardwright.search.mixed.subproblem.exact import least_by_splits, least_of_listed
from shardwright.search.mixed.tables.columns import Layers, Table, layers_of
from shardwright.search.mixed.tables.region import Region

Moves = Callable[[Table, np.ndarray], np.ndarray]

TIGHT = 0.97  # part of the best split's time that the bound reaches
LESS_TIGHT = 0.85  # where layers are unlike, and the split with the least work is another one than that of short stages


def all_splits(table: Table, counts: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, SplitTimes]]:
    """Yield the types of the stages in each order of the types, with all splits of the layers."""
    cuts = list(combinations(range(1, table.layers), int(counts.sum()) - 1))
    starts = np.array([(0, *cut, table.layers) for cut in cuts])
    for order in permutations(np.flatnonzero(counts).tolist()):
        kinds = np.repeat(order, counts[list(order)])
        yield kinds, stages(table, kinds, starts, micro_batches=size, copies=1, modes=MODES)


def least_moves(table: Table, kinds: np.ndarray) -> np.ndarray:
    """Return the seconds of messages between stages, of one type as if each two had a machine together."""
    pairs = [(int(here), int(there)) for here, there in pairwise(kinds)]
    near, far = least_move_seconds(table), table.far
    return np.array([near[here] if here == there else max(far[here], far[there]) for here, there in pairs])


def fastest_split(table: Table, counts: np.ndarray, size: int, moves: Moves) -> float:
    """Return the least seconds of the pipelines of all splits in all orders of the types that fit."""
    best = np.inf
    for kinds, made in all_splits(table, counts, size):
        seconds = pipeline_seconds(made, moves(table, kinds), size)
        best = min(best, float(np.where(made.fits, seconds, np.inf).min()))
    return best


def soonest_end(table: Table, counts: np.ndarray, size: int, moves: Moves) -> float:
    """Return the least seconds of all splits in all orders that fit, with what comes after the pipeline."""
    best = np.inf
    for kinds, made in all_splits(table, counts, size):
        seconds = pipeline_seconds(made, moves(table, kinds), size) + after_seconds(table, kinds, made, 1, None)
        best = min(best, float(np.where(made.fits, seconds, np.inf).min()))
    return best + float(table.norm_seconds(int(counts.sum()))[0, counts > 0].max())


def drawn(seed: int, problem: Small | None = None) -> Iterator[tuple[Table, Layers, Region, Compositions, int]]:
    """Yield compositions of two stages or more of a small problem, random where none is given, one a time, with a
    number of micro-batches."""
    problem = problem or small(seed, most_layers=8)
    table, pick = problem.tables[0], np.random.default_rng(seed)
    layers = layers_of(table)
    depth = int(min(table.units.sum(), table.layers, 5))
    region = Region(fewest=1, most=1, modes=MODES, link=np.inf, used=())
    found = capacity(table, layers, copies=1, depth=max(depth, 2), longest=1e9, few=False, modes=MODES)
    for _ in range(6):
        counts = np.array([pick.integers(0, units + 1) for units in table.units])
        size = int(counts.sum() + pick.integers(0, 12))
        if not 2 <= counts.sum() <= depth:
            continue
        yield table, layers, region, columns(table, layers, found, counts[None], region, few=False), size


@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 12))])
def test_a_list_of_the_splits_knows_the_best_one_exactly(seed):
    for table, layers, region, column, size in drawn(seed):
        if not layers.whole or not len(column):
            continue
        best = soonest_end(table, column.counts[0], size, least_moves)
        if np.isfinite(best):
            least = partial(least_of_listed, table, layers, region, column, size)
            end = soonest_end(table, column.counts[0], size, moves_of)
            assert least(1.001 * max(best, end)) == pytest.approx(best, rel=1e-9)
            assert np.isinf(least(0.999 * best)), "no split takes less"


@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 12))])
def test_no_split_is_faster_and_the_best_is_hardly_slower(seed):
    hold_the_best_split(drawn(seed), TIGHT)


@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 60))])
def test_no_split_of_unlike_layers_is_faster_and_the_best_is_not_much_slower(seed):
    hold_the_best_split(drawn(seed, unlike(small(seed, most_layers=7), seed)), LESS_TIGHT)


def hold_the_best_split(problems: Iterable[tuple[Table, Layers, Region, Compositions, int]], tight: float) -> None:
    for table, layers, region, column, size in problems:
        best = fastest_split(table, column.counts[0], size, least_moves) if len(column) else np.inf
        if not np.isfinite(best):
            continue
        later = float(after(table, layers, column.counts, region)[0])
        real = fastest_split(table, column.counts[0], size, moves_of)
        least = (
            float(least_by_splits(table, layers, region, column, np.array([size]), 2.0 * (best + later), total=size)[0])
            - later
        )
        assert tight * best <= least <= real * (1.0 + 1e-9)
        below = least_by_splits(table, layers, region, column, np.array([size]), tight * best + later, total=size)[0]
        assert np.isinf(below), "no split takes less"


def test_ranges_of_the_longest_stage_prove_more_together_but_not_too_much():
    ratios = []
    for seed in (0, 1, 2, 54):
        for table, layers, region, column, size in drawn(seed):
            best = fastest_split(table, column.counts[0], size, least_moves) if len(column) else np.inf
            if not np.isfinite(best):
                continue
            later = float(after(table, layers, column.counts, region)[0])
            bound = partial(
                least_by_splits, table, layers, region, column, np.array([size]), 2.0 * (best + later), total=size
            )
            edges = [0.0, *np.geomspace(0.2, 1.0, 8) * best / size, np.inf]
            ranges = min(float(bound(edge)[0]) for edge in pairwise(edges)) - later
            assert ranges <= fastest_split(table, column.counts[0], size, moves_of) * (1.0 + 1e-9)
            ratios.append(ranges / (float(bound()[0]) - later))
    assert min(ratios) >= 1.0 - 1e-9, "each range has fewer splits"
    assert max(ratios) > 1.001, "and somewhere that shows"
