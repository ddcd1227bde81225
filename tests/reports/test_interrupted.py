"""Where machines can be taken back, all dollars of a report are those that the search compares."""

from __future__ import annotations

import pytest

from shardwright import load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.plans.ranking import Ranking, figures, text_table
from shardwright.reports.text.explain import value
from shardwright.reports.text.terminal import ranking_text
from shardwright.search.planner import plan
from shardwright.search.renting import choice_on_cluster
from shardwright.spec.read.cluster import build_cluster
from shardwright.units import format_dollars

NODES = [
    {"count": 2, "gpu": "H100-SXM", "gpus": 8, "price_per_hour": 30.0},
    {
        "count": 2, "gpu": "A100-SXM-80", "gpus": 8, "price_per_hour": 20.0, "spot": True,
        "spot_price_per_hour": 8.0, "preemptions_per_hour": 0.5,
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Ranking:
    job = make_job(global_batch=128, seq_len=4096, tokens="10B", objective="cost")
    return plan(
        load_model("llama-2-7b"),
        build_cluster({"nodes": NODES}, "c"),
        job,
        efficiency=Analytic(),
        gap=0.03,
        indifference=0.0,
    )


def test_no_plan_looks_cheaper_than_the_one_before_or_than_the_bound(found: Ranking) -> None:
    values = [value(each) for each in found.plans]
    assert any("A100-SXM-80" in each.gpus_by_type for each in found.plans), "some plan can be interrupted"
    assert values == sorted(values)
    assert found.search.lower_bound_dollars is not None
    assert values[0] >= found.search.lower_bound_dollars * (1.0 - 1e-9)


def test_the_report_and_a_notebook_show_runs_with_interruptions(found: Ranking) -> None:
    text = ranking_text(found)
    for each in found.plans:
        row, choice = figures(each), choice_on_cluster(each)
        assert choice is not None and (row["hours_total"], row["dollars_total"]) == (choice.hours, choice.dollars)
        assert choice.lost_share > 0.0
        assert format_dollars(choice.dollars) in text and format_dollars(choice.dollars) in text_table(found.plans)
