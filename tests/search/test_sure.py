"""Deadline and budget kept with a probability: by plans, by what is rented, and refused where nothing is sure enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.search.shop.samples import A100, H100, JOB, offers

from shardwright import Job, Ranking, SpecError, load_cluster, load_model, make_job, plan
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.trust.interval import chance_within, limit_kept
from shardwright.plans.findings import NotSure
from shardwright.reports.documents.ranking import ranking_document
from shardwright.reports.documents.shop import shop_document
from shardwright.reports.html.shop import shop_page
from shardwright.reports.text.first_screen import first_screen
from shardwright.reports.text.shop import chosen, front_text
from shardwright.search.market.result import USUALLY_SURE, Shopping, limits_of
from shardwright.search.market.shop import shop
from shardwright.search.sure import odds

MODEL, MACHINES = load_model("llama-3.2-1b"), load_cluster("2x8xA100-SXM-80")


def job(**limits: float) -> Job:
    return make_job(global_batch=64, seq_len=2048, tokens=1e10, **limits)  # type: ignore[arg-type]


def planned(wanted: Job, sure: float | None) -> Ranking:
    return plan(MODEL, MACHINES, wanted, top=1, sure=sure, efficiency=Analytic())


@pytest.fixture(scope="module")
def hours() -> float:
    """What the fastest plan is expected to take."""
    fastest = planned(job(), None).best.predicted
    assert fastest.hours_total is not None
    return fastest.hours_total


@pytest.mark.parametrize("sure", [0.02, 0.5, 0.8, 0.9, 0.999])
def test_the_limit_that_is_kept_is_the_inverse_of_the_chance(sure: float) -> None:
    prediction = planned(job(), None).best.predicted
    assert chance_within(prediction, 3.0, limit_kept(prediction, 3.0, sure)) == pytest.approx(sure)


@pytest.mark.parametrize("sure", [0.3, 0.9])
@pytest.mark.parametrize("objective", ["time", "cost"])
def test_a_plan_keeps_the_deadline_with_the_probability_asked_for(hours: float, sure: float, objective: str) -> None:
    wanted = replace(job(deadline_hours=1.6 * hours), objective=objective)  # type: ignore[arg-type]
    ranking = planned(wanted, sure)
    assert odds(ranking.best, wanted) >= sure and ranking.best.job == wanted
    assert "sure to keep the deadline" in " ".join(first_screen(ranking).split())
    document: Any = ranking_document(ranking)
    assert document["chances"] == [{"deadline": pytest.approx(odds(ranking.best, wanted))}]


def test_a_limit_that_is_missed_as_expected_may_be_kept_with_less(hours: float) -> None:
    wanted = job(deadline_hours=0.95 * hours)
    assert not planned(wanted, None).plans
    assert 0.2 <= odds(planned(wanted, 0.2).best, wanted) < 0.5


def test_where_nothing_is_sure_enough_the_best_odds_are_told(hours: float) -> None:
    wanted = job(deadline_hours=1.01 * hours, budget_dollars=1e6)
    assert planned(wanted, None).plans
    refused = planned(wanted, 0.99)
    assert not refused.plans and refused.infeasible is not None
    reason = refused.infeasible.reason
    assert isinstance(reason, NotSure) and reason.sure == 0.99
    assert 0.5 < reason.odds < 0.99 and reason.hours == pytest.approx(hours)


@pytest.mark.parametrize("sure", [0.0, 1.0, -1.0, float("nan")])
def test_what_is_no_probability_is_refused(sure: float) -> None:
    with pytest.raises(SpecError, match=r"over 0 and under 1|nan is no number"):
        planned(job(deadline_hours=100.0), sure)


def test_a_probability_of_no_limit_is_refused() -> None:
    with pytest.raises(SpecError, match="there is none"):
        planned(job(), 0.9)


def rented(sure: float | None, **limits: float) -> Shopping:
    wanted = replace(JOB, **limits)  # type: ignore[arg-type]
    return shop(MODEL, offers(H100, A100), wanted, efficiency=Analytic(), mixes=0, sure=sure)


def test_what_is_rented_keeps_the_deadline_with_80_percent_if_nobody_says() -> None:
    free = rented(None)
    deadline = 2.5 * free.front[0].hours
    for sure, least in ((None, USUALLY_SURE), (0.95, 0.95), (0.5, 0.5)):
        result = rented(sure, deadline_hours=deadline)
        assert result.infeasible is None
        chance = limits_of(result).odds(result.front[chosen(result)])
        assert chance >= least
        words = f"{chance:.0%} sure to keep the deadline"
        assert words in " ".join(front_text(result, MODEL, JOB, 9, 100).split())
        document = shop_document(result, ())
        assert any(f"{chance:.0%} sure to keep the limits" in figure.note for figure in shop_page(document).figures)


def test_of_what_is_rented_too_the_best_odds_are_told() -> None:
    fastest = rented(None).front[0].hours
    result = rented(0.99, deadline_hours=fastest)
    assert result.infeasible is not None and isinstance(result.infeasible.reason, NotSure)
    assert 0.3 < result.infeasible.reason.odds < 0.99
    assert rented(None, deadline_hours=fastest).infeasible is None, "as expected it is kept, if not with 80 %"
