"""A limit that the best plan just keeps leaves it the answer; of one that nothing keeps it is said what would do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.nightly import nightly

from shardwright import Job, Plan, load_model, make_job
from shardwright.plans.findings import Cheapest, Fastest
from shardwright.search.planner import plan
from shardwright.spec.read.cluster import build_cluster

MODEL = load_model("gpt2")
TWO_TYPES = build_cluster(
    {"nodes": [{"count": 1, "gpu": "A100-SXM-40", "gpus": 2, "price_per_hour": 8},
               {"count": 1, "gpu": "V100-SXM2-16", "gpus": 2, "price_per_hour": 3}]},
    "here",
)  # fmt: skip
ROUNDED = 1.0 + 1e-9


def taken(best: Plan) -> tuple[float, float]:
    """Return the hours and the dollars of the whole run."""
    hours, dollars = best.predicted.hours_total, best.predicted.dollars_total
    assert hours is not None and dollars is not None
    return hours, dollars


def limited(job: Job, limit: str, most: float) -> Job:
    return replace(job, deadline_hours=most) if limit == "deadline" else replace(job, budget_dollars=most)


@pytest.mark.parametrize(
    ("objective", "limit"),
    [("time", "budget"), *nightly([("cost", "budget"), ("time", "deadline"), ("cost", "deadline")])],
)
def test_a_limit_that_the_best_plan_just_keeps_leaves_it(objective: str, limit: str) -> None:
    job = make_job(global_batch=8, seq_len=512, precision="fp16", tokens="1B", objective=objective)
    free = plan(MODEL, TWO_TYPES, job, top=1)
    most = taken(free.best)[limit == "budget"]
    within = plan(MODEL, TWO_TYPES, limited(job, limit, most * ROUNDED), top=1)
    by = 0 if objective == "time" else 1
    assert taken(within.best)[by] <= taken(free.best)[by] * 1.01
    assert taken(within.best)[limit == "budget"] <= most * ROUNDED

    nothing = plan(MODEL, TWO_TYPES, limited(job, limit, 0.01 * most), top=1).infeasible
    assert nothing is not None
    (remedy,) = [remedy for remedy in nothing.remedies if isinstance(remedy, Fastest | Cheapest)]
    would = remedy.hours if isinstance(remedy, Fastest) else remedy.dollars
    assert plan(MODEL, TWO_TYPES, limited(job, limit, would * ROUNDED), top=1).plans


@pytest.mark.parametrize("part", [0.999, *nightly([0.97, 0.9, 0.7])])
def test_a_budget_that_the_fastest_plan_misses_leaves_the_fastest_of_those_that_keep_it(part: float) -> None:
    job = make_job(global_batch=8, seq_len=512, precision="fp16", tokens="1B")
    free = plan(MODEL, TWO_TYPES, job, top=1)
    most = taken(free.best)[1] * part
    within = plan(MODEL, TWO_TYPES, limited(job, "budget", most))
    assert all(taken(kept)[1] <= most for kept in within.plans)
    assert within.best.iteration_seconds >= (free.best.predicted.lower_bound_seconds or 0.0)
    for pool in TWO_TYPES.pools:
        alone = plan(MODEL, replace(TWO_TYPES, pools=(pool,)), limited(job, "budget", most), top=1).plans
        assert all(within.best.iteration_seconds <= other.iteration_seconds * 1.01 for other in alone)
