"""First plans are plans of the search's own space: legal, costed, each better than the last, none better than the best."""

from __future__ import annotations

import pytest
from tests.nightly import nightly

import shardwright
from shardwright import Cluster, Job, Model, check
from shardwright.search.first_plans import first_plans
from shardwright.search.objective import affordable_value

TWO = "1x8xH100-SXM+2x8xA100-SXM-80"
CLUSTERS = ("2x8xA100-SXM-40", "1x8xA100-SXM-40+2x8xV100-SXM2", "1x8xH100-SXM+1x8xA100-SXM-80+1x4xL40S")


def question(cluster: str, **limits: float) -> tuple[Model, Cluster, Job]:
    job = shardwright.make_job(global_batch=64, seq_len=1024, tokens=1e10, precision="fp16", **limits)
    return shardwright.load_model("opt-1.3b"), shardwright.load_cluster(cluster), job


@pytest.mark.parametrize("cluster", [*CLUSTERS[:2], *nightly(CLUSTERS[2:])])
def test_they_get_better_and_none_beats_what_is_proved(cluster: str) -> None:
    asked = (shardwright.load_model("gpt2-xl"), *question(cluster)[1:])
    found = list(first_plans(*asked))
    assert found and all(not check(plan) for plan in found)
    seconds = [plan.iteration_seconds for plan in found]
    assert seconds == sorted(seconds, reverse=True)
    best = shardwright.plan(*asked).best
    assert best.predicted.lower_bound_seconds is not None
    assert found[-1].iteration_seconds >= best.predicted.lower_bound_seconds * (1 - 1e-9)
    again = shardwright.predict(found[-1])
    assert again.iteration_seconds == pytest.approx(found[-1].iteration_seconds, rel=1e-9)


def test_several_types_are_used_together() -> None:
    model, cluster, _ = question(TWO)
    found = list(first_plans(model, cluster, shardwright.make_job(global_batch=512, seq_len=2048)))
    assert len(found[-1].gpus_by_type) == 2


def test_what_keeps_the_deadline_comes_before_what_is_faster_but_misses_it() -> None:
    model, cluster, job = question(CLUSTERS[0])
    hours = [plan.predicted.hours_total for plan in first_plans(model, cluster, job)]
    assert hours[-1] is not None
    strict = question(CLUSTERS[0], deadline_hours=hours[-1] / 10)
    last = list(first_plans(*strict))[-1]
    assert affordable_value(last) is None  # told all the same: nothing keeps it


def test_nothing_is_told_where_nothing_fits() -> None:
    job = shardwright.make_job(global_batch=8, seq_len=2048)
    model, cluster = shardwright.load_model("llama-3.1-405b"), shardwright.load_cluster("1x8xA100-SXM-40")
    assert list(first_plans(model, cluster, job)) == []
