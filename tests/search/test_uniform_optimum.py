"""The search returns the true optimum of its own cost model: brute force over the whole declared space agrees. Of equal
plans it returns the same ones, and its bounds hold under the fitted efficiency model.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.cost.samples import context, llama, pool
from tests.nightly import examples, nightly
from tests.search import oracle_uniform as oracle
from tests.search.problems import Problem, problems, solved, values
from tests.search.test_sketch import sketch_holds

from shardwright import Job, Space, load_cluster, load_model, make_job
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.learned import Learned
from shardwright.cost.strategies import BLOCK, COLUMNS, NONE, SELECTIVE, strategies
from shardwright.cost.trust.rarity import strategy_switches
from shardwright.rounding import coarse
from shardwright.search.objective import Objective
from shardwright.search.planner import plan
from shardwright.search.rules.filters import Filters
from shardwright.search.uniform.best import Best
from shardwright.search.uniform.search import search

ALL = 10_000  # more layouts than any problem has: nothing is pruned, and every layout must have its best strategy
ROUNDED = 2.0**-36  # values are rounded to 36 binary digits


@pytest.mark.parametrize("examples", [10, *nightly([1000])])
def test_search_finds_the_best_strategy_of_the_best_layouts(examples: int):
    many = settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    many(given(problem=problems(most=10_000))(require_the_best))()


def require_the_best(problem: Problem) -> None:
    where, verdict = solved(problem)
    cost, layout = values(where, verdict), oracle.layout_numbers(verdict.rows)
    fitting = np.flatnonzero(verdict.fits & np.isfinite(cost))
    fit_rows, fit_cost = verdict.rows.take(fitting), np.asarray(coarse(cost[fitting]))

    space, objective = (
        Space(pins=MappingProxyType(problem.pins)),
        Objective(model=where.model, job=where.job, pool=where.pool),
    )
    known = evaluate(where, verdict.rows.take(slice(None, None, len(verdict.rows) // 4 + 1)))
    for top, start, part in ((1, None, 0.01), (3, None, 0.01), (3, known, 0.1), (3, None, 0.0), (ALL, None, 0.05)):
        found = search(where, space, Filters(), objective, top=top, start=start, indifference=part)
        expected = oracle.preferred(where, fit_cost, fit_rows, layout[fitting], part)[:top]
        np.testing.assert_allclose([value for value, _ in found.ranked], [value for *_, value in expected], rtol=1e-9)
        least = fit_cost.min(initial=np.inf)
        for (value, row), (beyond, rare, _) in zip(found.ranked, expected, strict=True):
            assert beyond == (value > least * (1.0 + part)) and (beyond or oracle.rare_switches(where, row)[0] == rare)
        assert (found.least is None) == (not len(fit_cost))
        if found.least is not None:
            np.testing.assert_allclose(found.least[0], least, rtol=1e-9)
        assert found.candidates == len(verdict.rows)
        assert found.costed + sum(number for _, number in found.rejected) == found.candidates
        assert all(number > 0 for _, number in found.rejected)
        for value, row in found.ranked[:3]:
            again = evaluate(where, row)
            assert again.fits.all()
            np.testing.assert_allclose(values(where, again), value, rtol=ROUNDED)


@pytest.mark.parametrize("number", [2, 3, 5])
def test_recomputing_few_layers_may_beat_selective_recomputation(number: int):
    """Both fit; without FlashAttention at a long sequence, all core attention costs more than a few whole layers.
    One layer would not do: while it runs again, its activations take what it saved."""
    where = context(llama(8, 1024, 16, 16, 2048, 1000), pool(1, 1), Job(global_batch=2, seq_len=8192))
    pins = {"flash": (0,), "micro_batch": (1,)}
    verdict = evaluate(where, oracle.candidates(where, pins))
    rows = verdict.rows
    limit = verdict.peak_bytes[(rows.recompute == BLOCK) & (rows.recompute_layers == number)][0]
    where = replace(where, pool=replace(where.pool, memory_bytes=float(limit)))
    fits = verdict.peak_bytes <= limit
    assert fits[rows.recompute == SELECTIVE].all() and not fits[rows.recompute == NONE].any()
    found = search(
        where, Space(pins=pins), Filters(), Objective(model=where.model, job=where.job, pool=where.pool), top=1
    )
    ((value, row),) = found.ranked
    assert value == pytest.approx(verdict.seconds[fits].min(), rel=ROUNDED)
    assert (row.recompute[0], row.recompute_layers[0]) == (BLOCK, number)


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(problem=problems(most=3000))
def test_no_candidate_is_below_the_bound_of_its_arrangement(problem: Problem):
    where, verdict = solved(problem)
    if len(verdict.rows):
        learned = replace(where, efficiency=Learned())
        sketch_holds(learned, evaluate(learned, verdict.rows))


SIZES = ("LAYOUT_BATCH", "EARLY_BATCH", "ARRANGEMENT_BATCH", "SIMULATION_BATCH")


@pytest.mark.parametrize("seed", range(20))
def test_of_equal_rows_the_same_wins_in_whatever_order_they_come(seed):
    draw = np.random.default_rng(seed)
    layouts, values = draw.integers(0, 5, 40), draw.integers(1, 4, 40).astype(float)
    rows = strategies([{"first_layers": int(a), "last_layers": int(b)} for a, b in draw.integers(1, 4, (40, 2))])
    found = set()
    for _ in range(5):
        best = Best(3, 0.01, strategy_switches("Hopper", "dense"))
        for part in np.array_split(draw.permutation(40), draw.integers(1, 8)):
            best.offer(layouts[part], values[part], rows.take(part))
        found.add(
            tuple(
                (entry.value, entry.layout, *(getattr(entry.row, name)[0] for name in COLUMNS))
                for entry in best.ranked()
            )
        )
    assert len(found) == 1


@pytest.mark.parametrize("sizes", [(16, 4, 8, 4), (2000, 300, 300, 64)])
@pytest.mark.parametrize("model", ["opt-350m", "llama-2-13b"])
def test_plans_do_not_depend_on_the_sizes_of_batches(model, sizes, monkeypatch):
    given = load_model(model), load_cluster("2x8xA100-SXM-80"), make_job(global_batch=64, seq_len=2048)
    usual = plan(*given, top=5)
    for name, size in zip(SIZES, sizes, strict=True):
        monkeypatch.setattr(f"shardwright.search.uniform.search.{name}", size)
    assert plan(*given, top=5).plans == usual.plans
