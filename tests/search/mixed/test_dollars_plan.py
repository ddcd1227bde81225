"""`plan --objective cost` on machines of several types: the cheapest plan within a deadline, and what it says of it."""

from __future__ import annotations

from functools import cache

import pytest
from tests.nightly import nightly

from shardwright.cost.compute.efficiency import Analytic
from shardwright.plans.document import dumps
from shardwright.plans.findings import Cheapest
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Ranking
from shardwright.reports.documents.ranking import ranking_document
from shardwright.reports.text.terminal import ranking_text
from shardwright.reports.words import in_words
from shardwright.search.objective import INDIFFERENCE
from shardwright.search.planner import plan
from shardwright.spec.cluster import Cluster
from shardwright.spec.read.cluster import build_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model

GAP = 0.03
TOKENS = 1e9


def cluster(*, dear: float = 30.0, counts: tuple[int, int] = (2, 1)) -> Cluster:
    """Return machines of which the fast ones cost `dear` dollars an hour."""
    prices = {"A100-SXM-80": 8.0, "H100-SXM": dear}
    nodes = [
        {"count": count, "gpu": gpu, "gpus": 4, "price_per_hour": price}
        for count, (gpu, price) in zip(counts, prices.items(), strict=True)
    ]
    return build_cluster({"nodes": nodes}, "c")


def planned(machines: Cluster, model: str = "llama-2-7b", **limits: object) -> Ranking:
    job = make_job(global_batch=64, seq_len=2048, tokens=TOKENS, **limits)  # type: ignore[arg-type]
    return plan(load_model(model), machines, job, efficiency=Analytic(), gap=GAP)


solved = cache(planned)


def hours(found: Ranking) -> float:
    assert found.best.predicted.hours_total is not None
    return found.best.predicted.hours_total


def dollars(found: Ranking) -> float:
    return expected_dollars(found.best)


def expected_dollars(costed: Plan) -> float:
    """Return the dollars of the whole run, failures and restarts counted, as the search counts them."""
    assert costed.predicted.dollars_total is not None
    return costed.predicted.dollars_total


@pytest.mark.parametrize("dear", [20.0, *nightly([14.0, 30.0])])
def test_no_plan_on_one_type_is_cheaper_and_the_gap_is_kept(dear):
    found = solved(cluster(dear=dear), objective="cost")
    totals = [expected_dollars(entry.plan) for entry in found.baselines if entry.plan is not None]
    assert totals
    assert dollars(found) <= min(totals) * (1 + 1e-9)
    bound, iterations = found.search.lower_bound_dollars, found.best.job.iterations
    assert bound is not None and iterations is not None and found.search.gap is not None
    assert found.search.gap == pytest.approx(dollars(found) / iterations / bound - 1.0)
    assert -1e-9 <= found.search.gap <= GAP * (1 + 1e-9)


def test_a_deadline_between_the_cheapest_and_the_fastest_plan_takes_both_types():
    cheapest, fastest = solved(cluster(), objective="cost"), solved(cluster(), objective="time")
    assert set(cheapest.best.gpus_by_type) == {"A100-SXM-80"}
    singles = [entry.plan.prediction for entry in fastest.baselines if entry.plan and len(entry.plan.gpus_by_type) == 1]
    limit = 0.97 * min(single.hours_total for single in singles if single and single.hours_total)
    assert hours(fastest) < limit < hours(cheapest)
    within = solved(cluster(), objective="cost", deadline_hours=limit)
    assert hours(within) <= limit
    assert dollars(cheapest) <= dollars(within) <= dollars(fastest) * (1 + 1e-9)
    assert within.search.lower_bound_dollars is not None
    assert len(within.best.gpus_by_type) == 2


def test_the_fastest_plan_within_a_budget_keeps_it():
    cheapest, fastest = solved(cluster(), objective="cost"), solved(cluster(), objective="time")
    budget = 0.5 * (dollars(cheapest) + dollars(fastest))
    within = solved(cluster(), objective="time", budget_dollars=budget)
    assert dollars(within) <= budget
    assert hours(fastest) * (1 - 1e-9) <= hours(within) <= hours(cheapest)
    found = within.best.predicted
    assert within.search.lower_bound_dollars is None
    assert found.lower_bound_seconds is not None
    assert found.lower_bound_seconds <= found.iteration_seconds


@pytest.mark.nightly
def test_equal_input_gives_equal_plans():
    one, two = (planned(cluster(), objective="cost", deadline_hours=5.0) for _ in range(2))
    assert [dumps(found) for found in one.plans] == [dumps(found) for found in two.plans]
    assert one.search.lower_bound_dollars == two.search.lower_bound_dollars


def test_the_report_says_what_no_plan_costs_less_than():
    found = solved(cluster(), objective="cost")
    text = " ".join(ranking_text(found).split())
    assert "no strategy of the declared space costs less than $" in text
    assert "for all tokens; the plan is" in text
    search = ranking_document(found)["search"]
    assert isinstance(search, dict)
    assert search["lower_bound_dollars"] > 0.0 and search["gap"] <= GAP * (1 + 1e-9)


def test_a_budget_that_nothing_keeps_is_answered_with_the_cheapest_possible():
    small = cluster(counts=(1, 1))
    nothing, cheapest = (
        planned(small, "llama-3.2-3b", objective="cost", **limits) for limits in ({"budget_dollars": 1.0}, {})
    )
    assert nothing.plans == () and nothing.infeasible is not None
    (least,) = [remedy.dollars for remedy in nothing.infeasible.remedies if isinstance(remedy, Cheapest)]
    assert least == pytest.approx(dollars(cheapest), rel=GAP + INDIFFERENCE)
    assert any(in_words(remedy).startswith("the cheapest found is $") for remedy in nothing.infeasible.remedies)
