"""What is minimised where machines can be taken back: what the run is expected to cost."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from shardwright import Cluster, Plan, SpecError, load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.money import pool_stretch
from shardwright.plans.document import dumps
from shardwright.reports.text.plans import whole_run
from shardwright.search.objective import Objective
from shardwright.search.planner import plan
from shardwright.search.renting import choice_on_cluster
from shardwright.search.space.axes import parse_pins
from shardwright.spec.read.cluster import build_cluster

MODEL = load_model("llama-3.2-1b")
JOB = make_job(global_batch=64, seq_len=1024, tokens="50B", objective="cost")


def cluster(**entry: object) -> Cluster:
    machines = {"count": 8, "gpu": "A100-SXM-40", "gpus": 2, "price_per_hour": 4.0, "spot_price_per_hour": 2.0}
    return build_cluster({"nodes": [machines | entry]}, "c.yaml")


def test_failures_count_on_machines_that_nobody_takes_back_and_only_in_a_run_with_a_length() -> None:
    pool = cluster().pools[0]
    run, step = (Objective(model=MODEL, job=job, pool=pool) for job in (JOB, replace(JOB, tokens=None)))
    values = [each.values(np.array([3600.0]), np.array([4]))[0] for each in (run, step)]
    assert values[1] == pytest.approx(2 * 4.0)
    assert values[0] == pytest.approx(2 * 4.0 * pool_stretch(MODEL, JOB, pool, np.array([2]))[0])
    assert 1.0 < values[0] / values[1] < 1.01


def test_machines_that_cost_nothing_do_not_tell_plans_apart() -> None:
    given = cluster(price_per_hour=0.0)
    with pytest.raises(SpecError, match=r"price of A100-SXM-40: is 0.*objective=time"):
        plan(MODEL, given, JOB, efficiency=Analytic())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paid = replace(JOB, objective="time", budget_dollars=1.0)
        assert plan(MODEL, given, paid, top=1, efficiency=Analytic()).plans


def test_the_value_of_machines_that_can_be_taken_back_is_what_they_are_expected_to_cost() -> None:
    given = cluster(spot=True, preemptions_per_hour=0.5)
    best = plan(MODEL, given, JOB, top=1, efficiency=Analytic()).best
    choice = choice_on_cluster(best)
    assert choice is not None and JOB.iterations is not None
    objective = Objective(model=MODEL, job=JOB, pool=given.pools[0])
    value = objective.values(np.array([best.iteration_seconds]), np.array([best.gpus]))[0]
    assert value * JOB.iterations == pytest.approx(choice.dollars)
    assert choice.lost_share > 0.01


def test_the_plan_that_is_returned_is_expected_to_cost_least() -> None:
    given = cluster(spot=True, preemptions_per_hour=2.0)

    def dollars(found: Plan) -> float:
        choice = choice_on_cluster(found)
        assert choice is not None
        return choice.dollars

    best = plan(MODEL, given, JOB, top=1, efficiency=Analytic()).best
    each = [
        plan(MODEL, given, JOB, top=1, space=parse_pins([f"gpus={gpus}"]), efficiency=Analytic()).plans
        for gpus in (2, 4, 8, 16)
    ]
    assert dollars(best) == min(dollars(plans[0]) for plans in each if plans)


def test_limits_count_what_is_lost() -> None:
    given, run = cluster(spot=True, preemptions_per_hour=0.5), replace(JOB, objective="time")
    free = plan(MODEL, given, run, top=1, efficiency=Analytic()).best
    choice = choice_on_cluster(free)
    assert choice is not None and free.predicted.hours_total == choice.hours
    between = choice.hours * (1.0 - choice.lost_share / 2.0)
    late = plan(MODEL, given, replace(run, deadline_hours=between), top=1, efficiency=Analytic())
    assert all(
        found.hours <= between for found in (choice_on_cluster(each) for each in late.plans) if found is not None
    )
    kept = plan(MODEL, given, replace(run, deadline_hours=choice.hours * 1.001), top=1, efficiency=Analytic())
    assert kept.plans


def test_machines_taken_back_at_once_leave_figures_and_words() -> None:
    """Half of all would be taken back within a second: a factor without bounds overflowed, and all machines but one
    were said to be no faster."""
    given, run = cluster(spot=True, preemptions_per_hour=3600.0), replace(JOB, objective="time")
    found = plan(MODEL, given, run, top=1, efficiency=Analytic())
    calm = plan(MODEL, cluster(spot=True, preemptions_per_hour=0.0), run, top=1, efficiency=Analytic())
    assert found.best.replicas == calm.best.replicas
    assert "too often to ever end" in whole_run(found.best) and "too often to ever end" not in whole_run(calm.best)
    assert "Infinity" not in dumps(found.best) and "NaN" not in dumps(found.best)


def test_a_plan_without_a_price_or_a_length_has_no_expected_dollars() -> None:
    given = cluster(spot=True, preemptions_per_hour=0.5)
    short = replace(JOB, tokens=None, objective="time")
    assert choice_on_cluster(plan(MODEL, given, short, top=1, efficiency=Analytic()).best) is None
    unpriced = build_cluster({"nodes": [{"count": 8, "gpu": "A800-SXM-80", "gpus": 2}]}, "c.yaml")
    job = replace(JOB, objective="time")
    assert choice_on_cluster(plan(MODEL, unpriced, job, top=1, efficiency=Analytic()).best) is None
