"""A new plan for a changed cluster: legal, about as good as that of a full search, and quick to make again."""

from __future__ import annotations

import pytest

from shardwright.cost.efficiency import Analytic
from shardwright.plan.check import check
from shardwright.plan.plan import Plan
from shardwright.search.planner import plan, predict
from shardwright.search.replan import Kept, replan
from shardwright.spec.load_cluster import load_cluster
from shardwright.spec.load_job import make_job
from shardwright.spec.load_model import load_model

MODEL = load_model("llama-2-13b")
JOB = make_job(global_batch=128, seq_len=4096)
EFFICIENCY = Analytic()


@pytest.fixture(scope="module")
def before() -> Plan:
    return plan(MODEL, load_cluster("4x8xA100-SXM-80+2x8xH20"), JOB, efficiency=EFFICIENCY, gap=0.05).best


def seconds(found: Plan | None) -> float:
    assert found is not None
    assert found.prediction is not None
    return found.prediction.iteration_seconds


CHANGED = (
    "3x8xA100-SXM-80+2x8xH20",
    "4x8xA100-SXM-80+3x8xH20",
    "4x8xA100-SXM-80",
    "4x8xA100-SXM-80+1x8xH20",
    "2x8xA100-SXM-80+4x8xH20",
    "7x8xA100-SXM-80+2x8xH20",
    "3x8xA100-SXM-80+1x4xH20",
)
SLOWER = 1.2  # times the plan of a full search, at most


@pytest.mark.parametrize("changed", CHANGED)
def test_the_new_plan_is_legal_and_about_as_good_as_a_full_search(before, changed):
    cluster = load_cluster(changed)
    found = replan(before, cluster, efficiency=EFFICIENCY)
    assert found is not None
    assert check(found) == ()
    full = plan(MODEL, cluster, JOB, efficiency=EFFICIENCY, gap=0.05).best
    assert seconds(found) <= SLOWER * seconds(full)


def test_kept_layer_times_change_nothing(before):
    kept: Kept = {}
    replan(before, load_cluster("5x8xA100-SXM-80+2x8xH20"), kept=kept, efficiency=EFFICIENCY)
    cluster = load_cluster("3x8xA100-SXM-80+1x8xH20")
    again = replan(before, cluster, kept=kept, efficiency=EFFICIENCY)
    fresh = replan(before, cluster, efficiency=EFFICIENCY)
    assert again is not None
    assert fresh is not None
    assert again.replicas == fresh.replicas
    assert seconds(again) == pytest.approx(seconds(fresh), rel=1e-9)
    assert seconds(predict(again, efficiency=EFFICIENCY)) == pytest.approx(seconds(fresh), rel=1e-9)


def test_too_few_machines_have_no_plan(before):
    assert replan(before, load_cluster("1x4xL4"), efficiency=EFFICIENCY) is None
    assert replan(before, load_cluster("1x4xT4"), efficiency=EFFICIENCY) is None
