"""A pin and a rule mean the same thing in every search, and what the mixed search cannot obey is said."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from shardwright.cost.compute.efficiency import Analytic
from shardwright.plans.findings import MixedPlans
from shardwright.plans.ranking import Ranking
from shardwright.reports.text.mixed import idle_sentence
from shardwright.search.planner import plan
from shardwright.search.rules.rules import parse_rules
from shardwright.search.space.axes import parse_pins
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model


@cache
def planned(pin: str = "", rule: str = "") -> Ranking:
    return plan(
        load_model("llama-2-7b"),
        load_cluster("1x8xH100-SXM+2x8xA100-SXM-80"),
        make_job(global_batch=96, seq_len=4096),
        space=parse_pins([pin] if pin else []),
        rules=parse_rules(rule, "r") if rule else (),
        efficiency=Analytic(),
    )


def seconds(found: Ranking) -> float:
    assert found.best.prediction is not None
    return found.best.prediction.iteration_seconds


def test_the_best_plan_mixes_types() -> None:
    assert len(planned().best.gpus_by_type) == 2


@pytest.mark.parametrize(
    "pin", ["rank_order=tp-cp-ep-pp-dp", "rank_order=tp-cp-ep-dp-pp", "overlap_grad_reduce=on", "vpp=1"]
)
def test_a_pin_to_what_mixed_plans_have_keeps_them(pin: str) -> None:
    found = planned(pin)
    assert len(found.best.gpus_by_type) == 2
    assert seconds(found) == pytest.approx(seconds(planned()), rel=0.05)
    if pin.startswith("rank_order"):
        assert {each.rank_order for each in found.plans} == {pin.partition("=")[2]}


@pytest.mark.parametrize(
    ("pin", "rule"), [("tp_comm_overlap=off", "$tp_comm_overlap"), ("tp=2", "$tp != 2"), ("micro_batch=1", "$mbs > 1")]
)
def test_a_rule_finds_what_the_pin_finds(pin: str, rule: str) -> None:
    assert seconds(planned(rule=rule)) == pytest.approx(seconds(planned(pin)), rel=0.02)


@pytest.mark.parametrize("pin", ["vpp=2", "overlap_grad_reduce=off"])
def test_a_pin_that_no_mixed_plan_has_is_named(pin: str) -> None:
    found = planned(pin)
    (unsearched,) = [kind for kind in found.search.not_covered if isinstance(kind, MixedPlans)]
    assert unsearched.settings
    assert "were not searched" in idle_sentence(found.best, found.search)
    assert "no faster plan" not in idle_sentence(found.best, found.search)


def test_a_wide_gap_is_told_beside_what_stands_idle() -> None:
    found = planned("vpp=2")
    wide = replace(found.search, gap=0.25, not_covered=())
    assert "there may be one that is better by up to 20%" in idle_sentence(found.best, wide)
    assert "may be one" not in idle_sentence(found.best, replace(wide, gap=0.01))
