"""Plans over several types that one mesh of ranks can run: none of an enumeration beats their certificate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.nightly import nightly
from tests.search.mixed.problems import Small, small, spread

import shardwright
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE
from shardwright.exporters.megatron.limits import unsupported
from shardwright.plans.check import check
from shardwright.plans.findings import MixedPlans
from shardwright.plans.mesh import is_mesh
from shardwright.plans.plan import Plan
from shardwright.search.mixed.bounds.instance import instances
from shardwright.search.mixed.drafts.draft import ORDERS, Draft, fitting_seconds, plan_of
from shardwright.search.mixed.drafts.splits import Line
from shardwright.search.mixed.one_mesh import mesh_search
from shardwright.search.mixed.subproblem.equal_replicas import Candidate, by_all_splits, candidates, numbers_of_copies
from shardwright.search.mixed.tables.compositions import compositions
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.rules.filters import Filters
from shardwright.spec.cluster import NodePool, Price

SLOWEST = 1.05  # times the optimum
SIZES = {"most_gpus": 4, "most_layers": 4, "most_batch": 4}


def enumerated(problem: Small, rates: dict[str, float] | None = None) -> float:
    """Return the least seconds of all meshes with each stage on one type, infinite if none fits; with `rates`, dollars
    per second of a machine of each type, the least dollars."""
    known: Known = {}
    best = np.inf
    for setting, table in zip(problem.settings, problem.tables, strict=True):
        for draft in drafts(problem, setting, table.units):
            for order in ORDERS:
                plan = plan_of(problem.contexts, problem.cluster, draft, rank_order=order)
                if legal(plan):
                    seconds = fitting_seconds(problem.contexts, plan, known)
                    best = best if seconds is None else min(best, seconds * rate_of(problem, plan, rates))
    return best


def legal(plan: Plan) -> bool:
    """Return whether a plan is a mesh whose ranks Megatron-LM numbers so."""
    return not check(plan) and is_mesh(plan) and not any(each.path == "rank_order" for each in unsupported(plan))


def rate_of(problem: Small, plan: Plan, rates: dict[str, float] | None) -> float:
    if rates is None:
        return 1.0
    sizes = {context.pool.gpu.name: context.pool.gpus_per_node for context in problem.contexts}
    return sum(rates[gpu] * -(-count // sizes[gpu]) for gpu, count in plan.gpus_by_type.items())


def drafts(problem: Small, setting: Setting, units: np.ndarray) -> Iterator[Draft]:
    layers = len(problem.contexts[0].model.layers)
    total = problem.contexts[0].job.global_batch // setting.micro_batch
    for counts in compositions(units, layers).tolist():
        present = [kind for kind, count in enumerate(counts) if count]
        if len(present) < 2:
            continue
        most = min(units[kind] // counts[kind] for kind in present)
        for copies in [number for number in range(1, most + 1) if total % number == 0]:
            for order in itertools.permutations(present):
                kinds = tuple(kind for kind in order for _ in range(counts[kind]))
                for cuts in itertools.combinations(range(1, layers), len(kinds) - 1):
                    for recompute in ((NONE, 0), (SELECTIVE, 0), *((BLOCK, some) for some in range(1, layers + 1))):
                        line = Line(
                            kinds=kinds,
                            starts=(0, *cuts, layers),
                            recompute=(recompute,) * len(kinds),
                            seconds=0.0,
                            after=0.0,
                        )
                        yield Draft(setting=setting, replicas=((line, copies, total // copies),), seconds=0.0)


def hours_of(plan: Plan, iterations: float | None) -> float:
    assert iterations is not None
    return plan.iteration_seconds * iterations / 3600.0


def against_enumeration(problem: Small) -> bool:
    found = mesh_search(
        problem.contexts, problem.cluster, problem.space, Filters(rules=()), gap=0.0, incumbent=np.inf, top=1
    )
    best = enumerated(problem)
    seconds = found.plans[0].iteration_seconds if found.plans else np.inf
    assert min(found.bound, seconds) <= best * (1.0 + 1e-9)
    assert np.isfinite(seconds) or not np.isfinite(best)
    if np.isfinite(best):
        assert seconds <= SLOWEST * best
    assert all(is_mesh(plan) and not check(plan) for plan in found.plans)
    return bool(np.isfinite(best))


def priced(problem: Small) -> tuple[Small, dict[str, float]]:
    """Return a problem by dollars, of which machines of each type cost other ones, and the dollars of a second."""
    prices = {pool.gpu.name: 3600.0 * (2.0 + place) for place, pool in enumerate(problem.cluster.pools)}

    def with_price(pool: NodePool) -> NodePool:
        price = Price(on_demand_per_hour=prices[pool.gpu.name], spot_per_hour=None, source="test", date="2026")
        return replace(pool, spot=False, price=price)

    cluster = replace(problem.cluster, pools=tuple(map(with_price, problem.cluster.pools)))
    contexts = tuple(
        replace(context, pool=with_price(context.pool), job=replace(context.job, objective="cost"))
        for context in problem.contexts
    )
    return replace(problem, cluster=cluster, contexts=contexts), {gpu: price / 3600.0 for gpu, price in prices.items()}


def dollars_against_enumeration(seed: int) -> bool:
    problem, rates = priced(small(seed, **SIZES))
    found = mesh_search(
        problem.contexts, problem.cluster, problem.space, Filters(rules=()), gap=0.0, incumbent=np.inf, top=1
    )
    best = enumerated(problem, rates)
    plans = [plan.iteration_seconds * rate_of(problem, plan, rates) for plan in found.plans]
    dollars = min(plans, default=np.inf)
    assert min(found.bound, dollars) <= best * (1.0 + 1e-9)
    assert np.isfinite(dollars) == np.isfinite(best)
    if np.isfinite(best):
        assert dollars <= SLOWEST * best
    return bool(np.isfinite(best))


def test_enumeration_does_not_beat_the_certificate_in_dollars() -> None:
    assert dollars_against_enumeration(1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, *range(2, 60)])
def test_enumeration_of_more_clusters_does_not_beat_it_in_dollars(seed: int) -> None:
    dollars_against_enumeration(seed)


def test_enumeration_does_not_beat_the_certificate_of_a_mesh() -> None:
    assert against_enumeration(small(0, **SIZES))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 80))
def test_enumeration_of_more_clusters_does_not_beat_the_certificate_of_a_mesh(seed: int) -> None:
    against_enumeration(small(seed, **SIZES))


@pytest.mark.parametrize("seed", [8, 9, 11, *nightly(range(12, 80))])
def test_enumeration_does_not_beat_the_certificate_where_context_and_experts_are_spread(seed: int) -> None:
    """Of the three of every run the best plans have two ranks for experts, two for sequences, or both."""
    against_enumeration(spread(seed, gpus=(2, 3, 4)))


def random_seconds(problem: Small, way: Candidate, pick: np.random.Generator) -> list[float]:
    """Return the exact seconds of some random plans of a candidate that fit."""
    layers, found = way.instance.table.layers, []
    known: Known = {}
    for _ in range(6):
        present = pick.permutation(np.flatnonzero(way.counts))
        kinds = np.repeat(present, np.array(way.counts)[present]).tolist()
        if len(kinds) > layers:
            return []
        cuts = np.sort(pick.choice(np.arange(1, layers), len(kinds) - 1, replace=False)).tolist()
        mode = (NONE, SELECTIVE, BLOCK)[int(pick.integers(3))]
        recompute = (mode, int(pick.integers(1, layers + 1)) if mode == BLOCK else 0)
        line = Line(
            kinds=tuple(kinds), starts=(0, *cuts, layers), recompute=(recompute,) * len(kinds), seconds=0.0, after=0.0
        )
        replicas = ((line, way.copies, way.micro_batches),)
        draft = Draft(setting=way.instance.setting, replicas=replicas, seconds=0.0)
        for order in ORDERS:
            plan = plan_of(problem.contexts, problem.cluster, draft, rank_order=order)
            if legal(plan):
                found.append(fitting_seconds(problem.contexts, plan, known))
    return [seconds for seconds in found if seconds is not None]


@pytest.mark.parametrize("seed", [2, 6])
def test_no_plan_is_below_the_bounds_of_its_candidate(seed: int) -> None:
    """Neither below the inequalities nor below what all of its splits take, with context and experts spread too."""
    assert bounds_of_candidates(seed, spread(seed, gpus=(4, 8, 12, 16)))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [5, *range(9, 300)])
def test_no_plan_of_more_clusters_is_below_the_bounds_of_its_candidate(seed: int) -> None:
    """Every tenth cluster or so has no such plan."""
    bounds_of_candidates(seed, spread(seed, gpus=(4, 8, 12, 16)))


@pytest.mark.parametrize("seed", [3, 4, *nightly(range(5, 300))])
def test_no_plan_of_dense_layers_before_those_with_experts_is_below_the_bounds_of_its_candidate(seed: int) -> None:
    bounds_of_candidates(seed, spread(seed, gpus=(2, 4, 8), layers=(3, 8), first_dense=(1, 2, 3)))


def bounds_of_candidates(seed: int, problem: Small) -> int:
    """Hold the bounds of some candidates against random plans of each. Return of how many there are plans."""
    pick, compared = np.random.default_rng(seed), 0
    batch = problem.contexts[0].job.global_batch
    for instance in instances(problem.settings[:4], problem.tables[:4], batch, problem.space):
        for copies in numbers_of_copies(instance, problem.space):
            ways = candidates(instance, instance.compositions(problem.space), copies, 1e6)
            for way in [ways[place] for place in pick.permutation(len(ways))[:3]]:
                least = min(random_seconds(problem, way, pick), default=np.inf)
                if np.isfinite(least):
                    sooner = candidates(instance, instance.compositions(problem.space), copies, 1.01 * least)
                    bounded = next(each for each in sooner if each.counts == way.counts)
                    assert by_all_splits(bounded, 1.01 * least).seconds <= least * (1.0 + 1e-9)
                    compared += 1
    return compared


def test_megatron_plans_over_several_types_by_time_and_by_dollars() -> None:
    model, cluster = shardwright.load_model("llama-2-7b"), shardwright.load_cluster("1x4xH100-SXM+1x8xA100-SXM-80")
    job = shardwright.make_job(global_batch=24, seq_len=4096, tokens=1e9)
    found = shardwright.plan(model, cluster, job, exportable_to="megatron")
    assert len(found.best.gpus_by_type) == 2 and is_mesh(found.best)
    assert found.best.job.framework == "megatron"
    assert found.best.iteration_seconds < min(entry.plan.iteration_seconds for entry in found.baselines if entry.plan)
    free = shardwright.plan(model, cluster, job)
    assert free.best.iteration_seconds <= 1.01 * found.best.iteration_seconds
    assert free.best.predicted.lower_bound_seconds is not None
    assert free.best.predicted.lower_bound_seconds <= found.best.iteration_seconds
    by_cost = shardwright.plan(model, cluster, replace(job, objective="cost"), exportable_to="megatron")
    assert is_mesh(by_cost.best) and by_cost.search.lower_bound_dollars is not None
    assert not [kind for kind in by_cost.search.not_covered if isinstance(kind, MixedPlans)]
    deadline = 0.99 * hours_of(by_cost.best, job.iterations)
    quick = replace(job, objective="cost", deadline_hours=deadline)
    sooner = shardwright.plan(model, cluster, quick, exportable_to="megatron").best
    assert is_mesh(sooner) and hours_of(sooner, job.iterations) <= deadline
