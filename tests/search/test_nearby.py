"""Where the batch does not divide, other batches and numbers of machines are named, and unequal shares of the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright import Plan, load_cluster, load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.plans.ranking import Nearby
from shardwright.reports.text.first_screen import first_screen
from shardwright.search.nearby import nearby
from shardwright.search.planner import plan, with_nearby

MODEL = load_model("llama-3.1-8b")
TEN = "10x8xH100-SXM"


def best(batch: int, machines: str = TEN) -> Plan:
    job = make_job(global_batch=batch, seq_len=4096)
    return plan(MODEL, load_cluster(machines), job, efficiency=Analytic(), top=1).best


def tokens(found: Plan) -> float:
    return found.predicted.tokens_per_second


@pytest.fixture(scope="module")
def rows() -> tuple[Nearby, ...]:
    job = make_job(global_batch=512, seq_len=4096)
    ranking = with_nearby(plan(MODEL, load_cluster(TEN), job, efficiency=Analytic()), efficiency=Analytic())
    assert "nearby" in first_screen(ranking)
    return ranking.nearby


def test_batches_that_divide_are_named_with_what_they_gain(rows: tuple[Nearby, ...]) -> None:
    batches = {row.global_batch: row for row in rows if row.gpus == 80 and not row.shares}
    assert set(batches) == {480, 560}
    for batch, row in batches.items():
        other = best(batch)
        assert row.tokens_per_second == tokens(other)
        assert row.gain == pytest.approx(tokens(other) / tokens(best(512)) - 1.0)
        assert row.gain > 0.05


def test_numbers_of_machines_that_divide_are_named(rows: tuple[Nearby, ...]) -> None:
    (row,) = [row for row in rows if row.gpus != 80]
    assert row.gpus == 64
    assert row.gain == pytest.approx(tokens(best(512, "8x8xH100-SXM")) / 64 / (tokens(best(512)) / 80) - 1.0)


def test_nothing_is_named_where_all_divides() -> None:
    job = make_job(global_batch=512, seq_len=4096)
    ranking = plan(MODEL, load_cluster("8x8xH100-SXM"), job, efficiency=Analytic())
    found = with_nearby(ranking, efficiency=Analytic())
    assert found.nearby == ()
    assert "nearby" not in first_screen(found)


def test_unequal_replicas_on_other_machines_are_not_those_of_this_batch() -> None:
    """Of `train` itself, whose plans may be unequal anywhere."""
    job = make_job(global_batch=512, seq_len=4096, framework="train")
    found = plan(MODEL, load_cluster(TEN), job, efficiency=Analytic(), top=1).best
    prediction = found.predicted
    assert not found.uniform
    faster = replace(found, prediction=replace(prediction, tokens_per_second=2.0 * prediction.tokens_per_second))
    rows = nearby(found, lambda machines, job, longest: replace(faster, cluster=machines, job=job))
    assert rows and not any(row.shares for row in rows)
