"""Plans by dollars: enumeration never finds one that beats the certificate, within deadline and budget too."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.nightly import nightly
from tests.search.mixed.oracle import TooManyError, brute_force
from tests.search.mixed.problems import EFFICIENCY, EFFORT, Small, small

from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.cost.predict import predict
from shardwright.plans.plan import Plan
from shardwright.search.mixed.bounds.compositions import Compositions, columns, micro_batches
from shardwright.search.mixed.bounds.instance import Instance, instances
from shardwright.search.mixed.branch_and_bound.run import MixedProblem, MixedResult
from shardwright.search.mixed.dollars.bounds import Start, fast_enough, least_dollars, roots, steady_micro_batches
from shardwright.search.mixed.dollars.cheapest import search
from shardwright.search.mixed.dollars.machines import all_boxes, bill_of, boxes
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.region import Region
from shardwright.search.mixed.tables.settings import settings
from shardwright.search.objective import affordable_value
from shardwright.spec.cluster import Price
from shardwright.spec.read.cluster import build_cluster
from shardwright.units import SECONDS_PER_HOUR

CLOSE = 1.2  # times the optimum, on problems of few micro-batches, where nothing is hidden
DAILY = range(3)


@dataclass(frozen=True)
class Point:
    """The least seconds of the plans on so many machines, and what a second costs, interruptions counted."""

    seconds: float
    dollars_per_second: float

    @property
    def dollars(self) -> float:
        return self.seconds * self.dollars_per_second


def price(dollars: float) -> Price:
    return Price(on_demand_per_hour=dollars, spot_per_hour=0.5 * dollars, source="user", date="")


def priced(seed: int, most_gpus: int = 4) -> Small:
    """Return a small problem with prices and a length of the run."""
    problem, pick = small(seed, most_gpus=most_gpus, most_layers=5, most_batch=4), random.Random(seed)
    pools = tuple(replace(pool, price=price(pick.uniform(1.0, 4.0))) for pool in problem.cluster.pools)
    job = replace(problem.contexts[0].job, tokens=1e9)
    contexts = tuple(
        replace(context, pool=pool, job=job) for context, pool in zip(problem.contexts, pools, strict=True)
    )
    return replace(problem, contexts=contexts, cluster=replace(problem.cluster, pools=pools))


def shared(seed: int) -> Small:
    """Return a small problem whose machines have GPUs of two types, alone or beside machines of another."""
    pick = random.Random(seed)
    first, second, third = pick.sample(("RTX3090", "L4", "T4", "A10G", "RTX4090"), 3)
    boxes = {"count": pick.choice((1, 2)), "gpus": {first: 1, second: 1}, "price_per_hour": pick.uniform(1.0, 4.0)}
    nodes: list[dict[str, object]] = [boxes]
    if boxes["count"] == 1:
        nodes.append({"count": 1, "gpu": third, "gpus": 1, "price_per_hour": pick.uniform(1.0, 4.0)})
    cluster = build_cluster({"nodes": nodes}, "test")
    problem = small(seed, most_layers=4, most_batch=4)
    model, job = problem.contexts[0].model, replace(problem.contexts[0].job, tokens=1e9)
    contexts = tuple(Context(model=model, pool=pool, job=job, efficiency=EFFICIENCY) for pool in cluster.pools)
    space = replace(problem.space, pins={**problem.space.pins, "tp": (1,)})
    chosen = tuple(settings(contexts, space))
    return Small(cluster, contexts, space, chosen, tuple(tables(contexts, chosen, cluster.site_links)))


def points(problem: Small, most: int) -> Iterator[Point]:
    """Yield the points of all numbers of machines that can hold the model, by enumeration of their plans."""
    pools, contexts = problem.cluster.pools, problem.contexts
    bill = bill_of([replace(context, job=replace(context.job, objective="cost")) for context in contexts])
    for numbers in list(itertools.product(*(range(pool.nodes + 1) for pool in pools)))[1:]:
        best = brute_force(problem.contexts, problem.cluster, problem.settings, most, machines=numbers).best
        if np.isfinite(best):
            machines = np.array([numbers])
            yield Point(best, float(boxes(bill, machines, machines).slope[0]))


def solved(problem: Small, gap: float, **limits: object) -> MixedResult:
    """Return what the search by dollars finds, for the job with other limits or another objective."""
    contexts = tuple(replace(context, job=replace(context.job, **limits)) for context in problem.contexts)
    known: Known = {}

    def costed(plan: Plan) -> Plan:
        return plan.costed(predict(plan, EFFICIENCY, known=known))

    whole = MixedProblem(contexts, problem.cluster, problem.space, gap, problem.settings, problem.tables, known, EFFORT)
    return search(whole, bill_of(contexts), np.inf, lambda plan: True, costed, affordable_value)


def in_money(problem: Small, longest: float) -> float:
    """Return the dollars that no plan costs less than, by the program with a row for money."""
    bill, batch = bill_of(problem.contexts), problem.contexts[0].job.global_batch
    starts = [
        Start(each, region, bill.part / np.maximum(each.table.units // bill.machines, 1))
        for each in instances(problem.settings, problem.tables, batch, problem.space)
        for region in roots(each, problem.space)
    ]
    return least_dollars(starts, problem.space, 1e3, longest, 100)


def against(found: MixedResult, best: float | None) -> None:
    """Compare what was found with the best value by enumeration."""
    assert bool(found.plans) == (best is not None)
    if best is None:
        return
    value = found.plans[0][0]
    assert found.bound <= min(best, value) * (1 + 1e-9)
    assert value <= CLOSE * best
    if value <= found.bound * (1 + 1e-6):
        assert best >= value * (1 - 1e-6)


def against_enumeration(problem: Small, most: int) -> None:
    known = list(points(problem, most))
    iterations = problem.contexts[0].job.iterations
    assert iterations is not None
    against(solved(problem, 0.0, objective="cost"), min((point.dollars for point in known), default=None))
    if not known:
        return
    cheapest, fastest = min(known, key=lambda point: point.dollars), min(known, key=lambda point: point.seconds)
    seconds = float(np.sqrt(cheapest.seconds * fastest.seconds)) * 1.001
    dollars = float(np.sqrt(cheapest.dollars * fastest.dollars)) * 1.001
    early = [point.dollars for point in known if point.seconds <= seconds]
    against(solved(problem, 0.0, objective="cost", deadline_hours=seconds * iterations / SECONDS_PER_HOUR), min(early))
    cheap = [point.seconds for point in known if point.dollars <= dollars]
    against(solved(problem, 0.0, objective="time", budget_dollars=dollars * iterations), min(cheap))
    assert in_money(problem, seconds) <= min(early) * (1 + 1e-9)
    assert in_money(problem, 1e3) <= cheapest.dollars * (1 + 1e-9)


@pytest.mark.parametrize("seed", DAILY)
def test_enumeration_does_not_beat_the_certificate(seed):
    against_enumeration(priced(seed), most=400)


@pytest.mark.parametrize("seed", [0, 9, *nightly(seed for seed in range(40) if seed not in (0, 9))])
def test_enumeration_does_not_beat_the_certificate_on_machines_of_several_types(seed):
    try:
        against_enumeration(shared(seed), most=600)
    except TooManyError:
        pytest.skip("the enumeration takes too long")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [seed for seed in range(40) if seed not in DAILY])
def test_enumeration_of_more_clusters_does_not_beat_the_certificate(seed):
    against_enumeration(priced(seed), most=400)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 250))
def test_enumeration_of_larger_clusters_does_not_beat_the_certificate(seed):
    try:
        against_enumeration(priced(seed, 6), most=600)
    except TooManyError:
        pytest.skip("the enumeration takes too long")


def spot(seed: int) -> Small:
    """Return a small problem in which machines of some types can be taken back."""
    problem, pick = priced(seed), random.Random(seed)
    pools = tuple(
        replace(pool, spot=True, preemptions_per_hour=pick.choice((0.0, 0.1, 2.0)), nodes=pick.randint(1, 6))
        for pool in problem.cluster.pools
    )
    job = replace(problem.contexts[0].job, tokens=1e11, deadline_hours=500.0, budget_dollars=2000.0)
    contexts = tuple(
        replace(context, pool=pool, job=job) for context, pool in zip(problem.contexts, pools, strict=True)
    )
    return replace(problem, contexts=contexts, cluster=replace(problem.cluster, pools=pools))


@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 20))])
@pytest.mark.parametrize("objective", ["time", "cost"])
def test_a_box_bounds_every_number_of_machines_in_it(seed, objective):
    problem, pick = spot(seed), np.random.default_rng(seed)
    bill = bill_of(problem.contexts)
    bill = replace(bill, job=replace(bill.job, objective=objective))
    low = pick.integers(0, 5, (200, len(bill.machines)))
    high = np.where(low > 0, low + pick.integers(0, 4, low.shape), 0)
    kept = low.any(axis=1)
    low, high = low[kept], high[kept]
    inside = pick.integers(low, high + 1)
    outer, inner = boxes(bill, low, high), boxes(bill, inside, inside)
    assert (outer.slope <= inner.slope * (1 + 1e-12)).all()
    assert (outer.longest >= inner.longest * (1 - 1e-12)).all()


@pytest.mark.parametrize("machines", [(3,), (16, 8), (48, 16, 5), (256, 128, 64, 64)])
def test_all_numbers_of_machines_are_in_one_box_each(machines):
    problem = priced(0)
    bill = replace(
        bill_of(problem.contexts[:1]),
        machines=np.array(machines),
        kind=np.arange(len(machines)),
        gpus=np.full(len(machines), 8),
        dollars=np.ones(len(machines)),
        preemptions=np.zeros(len(machines)),
    )
    found = all_boxes(bill)
    sizes = np.prod((found.high - found.low + 1).astype(float), axis=1)
    assert sizes.sum() == np.prod(np.array(machines) + 1.0) - 1.0
    numbers = np.random.default_rng(0).integers(0, np.array(machines) + 1, (50, len(machines)))
    held = ((found.low[:, None] <= numbers) & (numbers <= found.high[:, None])).all(axis=2)
    assert (held.sum(axis=0) == numbers.any(axis=1)).all()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("drawn", [spot, shared])
def test_the_value_of_a_plan_is_that_of_its_machines(seed, drawn):
    problem = drawn(seed)
    bill = bill_of(problem.contexts)
    for value, plan in solved(problem, 0.05, objective="cost", deadline_hours=None, budget_dollars=None).plans:
        used = np.array([plan.gpus_by_type[pool.gpu.name] for pool in problem.cluster.pools])
        machines = -(-used // np.array([pool.gpus_per_node for pool in problem.cluster.pools]))[None]
        job = replace(bill.job, objective="cost", deadline_hours=None, budget_dollars=None)
        slope = boxes(replace(bill, job=job), machines, machines).slope[0]
        assert value == pytest.approx(slope * plan.iteration_seconds, rel=1e-12)


def listed(seed: int) -> tuple[Instance, Region, Compositions]:
    """Return the columns of all compositions of two stages or more in a region of a small problem."""
    problem, pick = small(seed), random.Random(seed)
    batch = problem.contexts[0].job.global_batch
    each = pick.choice(instances(problem.settings, problem.tables, batch, problem.space))
    (region,) = each.roots(problem.space)
    region = replace(region, most=pick.randint(1, region.most))
    counts = each.compositions(problem.space)
    if not len(counts):
        pytest.skip("there is no pipeline on a single unit")
    parts = [
        columns(each.table, each.layers, each.capacity(region, np.inf, few=few), counts, region, few=few)
        for few in (False, True)
    ]
    return each, region, Compositions.concatenated(parts)


@pytest.mark.parametrize("seed", range(15))
def test_micro_batches_grow_with_the_time_at_least_in_proportion(seed):
    each, _, found = listed(seed)
    times = np.geomspace(0.5, 50.0, 60) * each.quick
    steady = np.zeros(len(found.counts))
    for seconds in times:
        steady = np.maximum(steady, np.minimum(micro_batches(found, seconds), each.total) / seconds)
        assert (steady_micro_batches(found, seconds, each.total) >= steady * seconds * (1 - 1e-9)).all()


@pytest.mark.parametrize("seed", range(15))
def test_no_composition_keeps_a_pace_that_none_was_found_fast_enough_for(seed):
    each, region, found = listed(seed)
    pick = np.random.default_rng(seed)
    for longest in np.geomspace(1.0, 20.0, 6) * each.quick:
        pace = longest / pick.uniform(0.5, 1.2 * each.total, len(found.counts))
        fast = np.isin(np.arange(len(pace)), fast_enough(each, region, found.counts, pace, longest))
        for seconds in np.linspace(0.05, 1.0, 40) * longest:
            done = np.minimum(micro_batches(found, seconds), each.total)
            assert (fast | (done * pace < seconds * (1 + 1e-9)) | (done == 0)).all()
