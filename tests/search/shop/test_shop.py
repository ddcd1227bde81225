"""Shopping: the front against a search of every number of machines, each point against its plan alone; it keeps what no
other point is as good as.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nightly import nightly
from tests.search.shop.samples import A100, A100_SPOT, GB200, H100, JOB, L40S, job, offers

from shardwright import Cluster, SpecError, check, load_model
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.trust.rarity import rare_in
from shardwright.plans.findings import (
    Cheapest,
    Fastest,
    JobLimits,
    NeverEnds,
    NoOfferKeeps,
    OffersTooSmall,
    PlacesApart,
)
from shardwright.search.market.result import Front, Point, Shopping
from shardwright.search.market.shop import shop
from shardwright.search.planner import plan, predict, with_usual
from shardwright.search.renting import Rental, choice_of
from shardwright.search.space.axes import parse_pins
from shardwright.search.space.parameters import AXES
from shardwright.spec.offers import Offers

MODEL = load_model("llama-3.2-1b")
EFFICIENCY = Analytic()
CASES = [
    [H100, A100, A100_SPOT],
    [H100 | {"market": "spot", "preemptions_per_hour": 0.2}, A100],
    [GB200, A100 | {"at_most": 2}],
    [A100 | {"rack_nodes": 2, "rack_gbps": 20, "at_most": 5}, L40S],
    [L40S, A100_SPOT, A100 | {"region": "elsewhere", "price_per_hour": 2.2, "at_most": 3}],
]


def found(entries: list[dict[str, Any]], **options: Any) -> Shopping:
    return shop(MODEL, offers(*entries), JOB, efficiency=EFFICIENCY, **({"mixes": 0} | options))


@cache
def case(number: int) -> Shopping:
    return found(CASES[number])


@cache
def two_types() -> Shopping:
    return found([H100, A100])


@cache
def one_type() -> Shopping:
    return found([A100])


def listed(given: Offers) -> list[tuple[float, float, float]]:
    """Return the front of the best plans on every number of machines of every offer, a search each: the fastest, which
    weighs 1 % more where it has rare switches that a search chooses, and the fastest without; of those what no other is
    as good as."""
    weighed: Front[Point] = Front()
    for offer in given.offers:
        for machines in range(1, offer.pool.nodes + 1):
            cluster, rental = Cluster(pools=(offer.pool.resized(machines),)), Rental(offer=offer, machines=machines)
            ranking = with_usual(
                plan(MODEL, cluster, JOB, top=1, efficiency=EFFICIENCY, indifference=0.0), efficiency=EFFICIENCY
            )
            usual = [ranking.usual.plan] if ranking.usual else []
            for candidate in (*ranking.plans, *usual):
                point = choice_of(candidate, (rental,), given.terms).point
                weight = 1.0 + 0.01 * any(switch.axis in AXES for switch in rare_in(candidate))
                weighed.offer((point[0] * weight, point[1] * weight, point[2] * weight), point)
    front: Front[None] = Front()
    for _, point in weighed.sorted():
        front.offer(point, None)
    return [point for point, _ in front.sorted()]


@pytest.mark.parametrize("number", [0, 1, 2, *nightly([3, 4])])
def test_the_front_is_that_of_a_search_of_every_number_of_machines(number: int) -> None:
    result = case(number)
    points = [choice.point for choice in result.front]
    assert len(points) > 2
    assert points == [pytest.approx(point, rel=1e-9) for point in listed(result.offers)]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_point_is_what_its_plan_alone_is_predicted_to_take(number: int) -> None:
    result = case(number)
    for choice in result.front:
        assert check(choice.plan) == ()
        alone = predict(replace(choice.plan, prediction=None), efficiency=EFFICIENCY).predicted
        assert choice.plan.iteration_seconds == pytest.approx(alone.iteration_seconds, rel=1e-12)
        assert choice.plan.cluster.gpus == choice.gpus
        again = choice_of(predict(choice.plan, efficiency=EFFICIENCY), choice.rentals, result.offers.terms)
        assert again.point == pytest.approx(choice.point, rel=1e-12)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_more_time_buys_less_money_or_less_risk_strictly(number: int) -> None:
    front = case(number).front
    for faster, slower in pairwise(front):
        assert faster.hours < slower.hours
        assert slower.dollars < faster.dollars or slower.preemptions < faster.preemptions
    safe = [choice for choice in front if choice.preemptions == 0.0]
    assert all(faster.dollars > slower.dollars for faster, slower in pairwise(safe))


def test_the_same_offers_give_the_same_front() -> None:
    assert found(CASES[0]).front == case(0).front
    shuffled = found(CASES[0][::-1])
    assert [c.point for c in shuffled.front] == [c.point for c in case(0).front]


def test_picks_keep_the_limits_and_nothing_that_does_is_better() -> None:
    front = case(0).front
    middle = front[len(front) // 2]
    limited = shop(
        MODEL,
        offers(*CASES[0]),
        replace(JOB, deadline_hours=middle.hours, budget_dollars=middle.dollars * 1.2),
        efficiency=EFFICIENCY,
        mixes=0,
    )
    assert [c.point for c in limited.front] == [c.point for c in front]
    assert limited.infeasible is None
    keeping = [c for c in front if c.hours <= middle.hours and c.dollars <= middle.dollars * 1.2]
    assert limited.picks.cheapest_in_time is not None and limited.picks.fastest_in_budget is not None
    assert limited.front[limited.picks.cheapest_in_time].dollars == min(c.dollars for c in keeping)
    assert limited.front[limited.picks.fastest_in_budget].hours == min(c.hours for c in keeping)


def test_steps_say_what_the_last_machines_bought() -> None:
    result = found([H100])
    first, second = result.front[0], result.front[1]
    step = result.steps[0]
    assert step is not None
    assert step.gpus == first.gpus - second.gpus
    assert step.faster == pytest.approx(1.0 - first.hours / second.hours)
    assert step.dearer == pytest.approx(first.dollars / second.dollars - 1.0)
    assert result.steps[-1] is None


@pytest.mark.parametrize(
    ("limits", "remedy"), [({"budget_dollars": 1.0}, Cheapest), ({"deadline_hours": 0.1}, Fastest)]
)
def test_limits_that_nothing_keeps_are_answered_with_what_is_possible(limits: dict[str, float], remedy: type) -> None:
    result = shop(MODEL, offers(H100, A100), replace(JOB, **limits), efficiency=EFFICIENCY, mixes=0)
    assert result.infeasible is not None
    assert result.infeasible.reason == NoOfferKeeps(
        JobLimits(**{"deadline_hours": None, "budget_dollars": None, **limits})
    )
    assert isinstance(result.infeasible.remedies[0], remedy)
    assert result.front


def test_limits_that_can_be_kept_only_one_at_a_time_are_both_told() -> None:
    front = two_types().front
    limits = {"deadline_hours": front[0].hours, "budget_dollars": front[-1].dollars}
    result = shop(MODEL, offers(H100, A100), replace(JOB, **limits), efficiency=EFFICIENCY, mixes=0)
    assert result.infeasible is not None
    assert len(result.infeasible.remedies) == 2


def test_a_model_that_fits_nowhere_has_no_front() -> None:
    result = shop(load_model("llama-2-70b"), offers(A100 | {"at_most": 1}), JOB, efficiency=EFFICIENCY)
    assert result.front == ()
    assert result.infeasible is not None and isinstance(result.infeasible.reason, OffersTooSmall)


def test_machines_that_are_taken_back_all_the_time_are_no_choice() -> None:
    hopeless = A100_SPOT | {"preemptions_per_hour": 3600.0}
    result = shop(MODEL, offers(hopeless), JOB, efficiency=EFFICIENCY, mixes=0)
    assert result.front == ()
    assert result.infeasible is not None and isinstance(result.infeasible.reason, NeverEnds)
    failing = shop(MODEL, offers(A100, failures_per_gpu_hour=1.0, restart_minutes=600), JOB, efficiency=EFFICIENCY)
    assert failing.infeasible is not None and isinstance(failing.infeasible.reason, NeverEnds)
    both = found([hopeless, A100])
    assert [choice.point for choice in both.front] == [choice.point for choice in one_type().front]


def test_of_machines_that_cost_nothing_the_fastest_number_is_used() -> None:
    (only,) = found([A100 | {"price_per_hour": 0.0}]).front
    assert only.dollars == 0.0
    assert only.hours == pytest.approx(one_type().front[0].hours, rel=0.01)  # what rare switches weigh
    front = found([A100 | {"price_per_hour": 0.0}, H100]).front
    assert front[-1].dollars == 0.0


def test_pins_narrow_every_plan() -> None:
    result = found([H100, A100], space=parse_pins(["tp=2"]))
    assert {choice.plan.stages[0].tensor_parallel for choice in result.front} == {2}


def test_a_mix_wins_where_the_better_machines_are_few() -> None:
    model, run = load_model("llama-3.1-8b"), job(global_batch=256, seq_len=4096, framework="train")
    few = {"gpus": 8, "at_most": 1}
    given = offers(
        {"gpu": "H100-SXM", "price_per_hour": 20.0, **few}, {"gpu": "A100-SXM-80", "price_per_hour": 9.0, **few}
    )
    alone = shop(model, given, run, efficiency=EFFICIENCY, mixes=0)
    mixed = shop(model, given, run, efficiency=EFFICIENCY, mixes=1)
    assert mixed.report.mixes == 1
    fastest = mixed.front[0]
    assert len(fastest.rentals) == 2
    assert fastest.hours < 0.8 * alone.front[0].hours
    assert {stage.gpu for stage in fastest.plan.stages} == {"H100-SXM", "A100-SXM-80"}
    again = choice_of(predict(fastest.plan, efficiency=EFFICIENCY), fastest.rentals, given.terms)
    assert again.point == pytest.approx(fastest.point, rel=1e-9)


def test_machines_at_places_without_a_link_are_not_mixed_and_this_is_said() -> None:
    apart = [H100 | {"at_most": 2, "site": "east"}, A100 | {"at_most": 6, "site": "west"}]
    report = shop(MODEL, offers(*apart), JOB, efficiency=EFFICIENCY, mixes=3).report
    assert report.mixes == 0
    assert PlacesApart((("east", "west"),)) in report.not_covered


def test_a_run_without_a_length_or_on_gpus_of_another_precision_is_refused() -> None:
    with pytest.raises(SpecError, match="`tokens=`"):
        shop(MODEL, offers(H100), job(tokens=None))
    with pytest.raises(SpecError, match="bf16"):
        shop(MODEL, offers({"gpu": "V100-SXM2", "gpus": 8, "price_per_hour": 5.0, "at_most": 2}), JOB)


def test_samples_longer_than_the_table_of_positions_are_refused() -> None:
    with pytest.raises(SpecError, match="longer than the model's table"):
        shop(load_model("gpt2-medium"), offers(A100), job(seq_len=2048), efficiency=EFFICIENCY)


SIZES = st.integers(0, 5).map(float)
POINTS = st.tuples(SIZES, SIZES, SIZES)


def as_good(one: Point, other: Point) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def front_of(points: list[Point]) -> Front[int]:
    front: Front[int] = Front()
    for place, point in enumerate(points):
        front.offer(point, place)
    return front


@given(st.lists(POINTS, max_size=12))
def test_the_front_is_what_no_other_point_is_as_good_as(points: list[Point]) -> None:
    kept = {point for point, _ in front_of(points).points}
    wanted = {point for point in points if not any(as_good(other, point) and other != point for other in points)}
    assert kept == wanted


@given(st.lists(POINTS, max_size=12))
def test_the_first_of_equal_points_stays(points: list[Point]) -> None:
    for point, place in front_of(points).points:
        assert points.index(point) == place


@given(st.lists(POINTS, min_size=1, max_size=8), POINTS, st.integers(0, 40).map(lambda tenths: tenths / 8.0))
def test_a_ray_is_cut_where_a_point_becomes_as_good(points: list[Point], slope: Point, t: float) -> None:
    front = front_of(points)
    cut = float(front.cuts(np.array([slope]))[0])
    here = (t * slope[0], t * slope[1], t * slope[2])
    assert (t >= cut) == any(as_good(known, here) for known, _ in front.points)
