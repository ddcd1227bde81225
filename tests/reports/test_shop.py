"""The report of a search over offers: the answers, a front within the width, words for risk and for what more buys."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.search.shop.samples import A100, A100_SPOT, H100, JOB, offers

from shardwright import load_model, report
from shardwright.cost.compute.efficiency import Analytic
from shardwright.plans.plan import PLAN_VERSION
from shardwright.reports.documents.shop import shop_document
from shardwright.reports.text.shop import chosen, shop_text
from shardwright.search.market.result import Shopping, limits_of
from shardwright.search.market.shop import shop
from shardwright.units import format_dollars, format_seconds

MODEL = load_model("llama-3.2-1b")
ELSEWHERE = A100_SPOT | {"region": "elsewhere", "price_per_hour": 0.6, "preemptions_per_hour": 0.2}


@pytest.fixture(scope="module")
def result() -> Shopping:
    return shop(MODEL, offers(H100, A100, A100_SPOT, ELSEWHERE), JOB, efficiency=Analytic(), mixes=0)


def limited(result: Shopping, deadline_hours: float | None, budget_dollars: float | None) -> Shopping:
    job = replace(JOB, deadline_hours=deadline_hours, budget_dollars=budget_dollars)
    return shop(MODEL, result.offers, job, efficiency=Analytic(), mixes=0)


@pytest.mark.parametrize("width", [80, 110, 160])
def test_no_line_is_wider_than_the_terminal(result: Shopping, width: int) -> None:
    text = shop_text(result, MODEL, JOB, (), width)
    assert max(map(len, text.splitlines())) <= width


def test_offers_are_named_by_place_only_where_they_would_be_called_the_same(result: Shopping) -> None:
    text = shop_text(result, MODEL, JOB, (), 160)
    assert "A100-SXM-40 spot elsewhere" in text
    assert "H100-SXM on-demand  " in text


def test_the_choice_answers_the_question_that_was_asked(result: Shopping) -> None:
    front = result.front
    middle = front[len(front) // 2]
    assert chosen(result) == (result.picks.knee if result.picks.knee is not None else len(front) - 1)
    in_time = limited(result, middle.hours, None)
    assert chosen(in_time) == in_time.picks.cheapest_in_time
    in_budget = limited(result, None, middle.dollars)
    assert chosen(in_budget) == in_budget.picks.fastest_in_budget


def test_risk_is_told_with_the_interval_and_its_approximation(result: Shopping) -> None:
    text = shop_text(limited(result, None, result.front[-1].dollars * 1.01), MODEL, JOB, ("a batch",), 110)
    for words in ("interruptions in", "checkpoints   every", "Young's approximation says", "of the paid hours",
                  "a million tokens", "- a batch", "failures: one in 50,677 GPU hours"):  # fmt: skip
        assert words in text


def test_what_keeps_no_limit_is_told_with_the_front(result: Shopping) -> None:
    text = shop_text(limited(result, None, 1.0), MODEL, JOB, (), 110)
    assert "No offer does" in text and "the cheapest found is $" in text
    assert "Time and money" in text
    assert "The plan of choice" not in text


def test_a_budget_that_nothing_keeps_is_told_with_what_the_deadline_costs(result: Shopping) -> None:
    hours = 1.01 * min(choice.hours for choice in result.front)
    dollars = min(choice.dollars for choice in result.front if choice.hours <= hours)
    text = " ".join(shop_text(limited(result, hours, 1.0), MODEL, JOB, (), 110).split())
    words = f"within {format_seconds(hours * 3600)} the cheapest is {format_dollars(dollars)} (budget $1.00)"
    assert "the cheapest found is $" in text and words in text and "hours" not in text.split("Time and money")[0]


def test_the_document_is_json_with_every_choice(result: Shopping) -> None:
    document = json.loads(json.dumps(shop_document(result, ()), allow_nan=False))
    assert [choice["dollars"] for choice in document["front"]] == [choice.dollars for choice in result.front]
    assert {"knee", "cheapest_within_deadline", "cheapest_on_demand_within_deadline", "fastest_within_budget"} == set(
        document["picks"]
    )
    for choice in document["front"]:
        assert choice["dollars"] == pytest.approx(
            sum(r["machines"] * r["dollars_per_machine_hour"] for r in choice["rent"]) * choice["hours"]
        )
        assert choice["plan"]["version"] == PLAN_VERSION


def test_the_page_has_the_same_choice_as_the_terminal_or_says_that_there_is_none(result: Shopping) -> None:
    plain = replace(result, picks=replace(result.picks, knee=None))
    cheapest = result.front[chosen(plain)]
    words = f"trains in {format_seconds(cheapest.hours * 3600)} for {format_dollars(cheapest.dollars)}.</h1>"
    assert cheapest.dollars == min(choice.dollars for choice in result.front) and words in report(plain)
    page = report(limited(result, None, 1.0))
    assert "<h1>No offer does: no offer keeps the budget.</h1>" in page and "for at most $1.00" in page
    assert "the cheapest found is $" in page and "shardwright export" not in page


def test_beside_spot_stands_the_cheapest_on_demand_within_the_deadline_with_its_chance(result: Shopping) -> None:
    slowest = max(choice.hours for choice in result.front)
    asked = limited(result, slowest, None)
    spot, safe = asked.picks.cheapest_in_time, asked.picks.on_demand_in_time
    assert (
        spot is not None and safe is not None and asked.front[spot].preemptions > 0.0 == asked.front[safe].preemptions
    )
    kept = [asked.front[place] for place in limits_of(asked).kept_by(asked.front)]  # those that are sure enough
    others = [choice.dollars for choice in kept if not choice.preemptions]
    assert asked.front[safe].dollars == min(others)
    text = " ".join(shop_text(asked, MODEL, JOB, (), 110).split())
    assert f"The same on demand: choice {safe + 1}, " in text
    odds = limits_of(asked).chances(asked.front[safe])
    assert list(odds) == ["deadline"] and 0.5 < odds["deadline"] <= 1.0
    assert f"{odds['deadline']:.0%} sure to keep the deadline" in text
    document = json.loads(json.dumps(shop_document(asked, ())))
    assert document["picks"]["cheapest_on_demand_within_deadline"] == safe
    assert document["front"][safe]["chances"] == odds
