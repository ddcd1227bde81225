"""Of plans that are as good the one that has less of what hardly any published run has comes first; what that costs is
said, and a plan that is better by more comes first whatever it has."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from shardwright import Ranking, SpecError, load_cluster, load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.trust.rarity import rare_in
from shardwright.reports.documents.ranking import ranking_document
from shardwright.reports.text.first_screen import first_screen
from shardwright.reports.text.terminal import ranking_text
from shardwright.search.mixed.entry import MixedOutcome
from shardwright.search.objective import affordable_value
from shardwright.search.planner import plan, with_usual
from shardwright.search.ranked import best_of, passed_over
from shardwright.search.several import Pipelines
from shardwright.search.space.axes import parse_pins

MODEL, MACHINE = load_model("llama-3.1-8b"), load_cluster("1x8xH100-SXM")
JOB = make_job(global_batch=64, seq_len=8192)


@cache
def ranked(*pins: str, indifference: float = 0.05) -> Ranking:
    return plan(MODEL, MACHINE, JOB, space=parse_pins(pins), efficiency=Analytic(), indifference=indifference)


def test_a_little_less_time_does_not_put_zero_2_first() -> None:
    found = ranked()
    assert found.best.optimizer.sharding != "zero2"
    assert found.passed_over is not None
    faster = found.passed_over.plan
    assert faster.optimizer.sharding == "zero2"
    assert faster.iteration_seconds == ranked("sharding=zero2").best.iteration_seconds
    assert found.passed_over.saving == pytest.approx(1.0 - faster.iteration_seconds / found.best.iteration_seconds)
    assert 0.0 < found.passed_over.saving < 0.05


@pytest.mark.parametrize("indifference", [0.0, 0.001])
def test_what_gains_more_than_the_indifference_comes_first_and_is_proved_the_best(indifference: float) -> None:
    better = ranked().passed_over
    assert better is not None and better.saving > 0.001
    found = ranked(indifference=indifference)
    assert found.best.optimizer.sharding == "zero2" and found.passed_over is None
    assert found.search.gap == 0.0 and found.search.indifference == indifference
    words = " ".join(first_screen(found).split())
    assert "hardly tested: ZeRO-2 (6 of 3,228 published runs)" in words


@pytest.mark.parametrize("indifference", [-0.01, 0.11, float("nan")])
def test_an_indifference_out_of_range_is_refused(indifference: float) -> None:
    with pytest.raises(SpecError, match="a fraction from 0 to"):
        ranked(indifference=indifference)


def test_machines_idle_for_a_better_proven_plan_only_within_the_indifference() -> None:
    """Plans over A100s and V100s are of several types, one of them without a published run: 8 % faster, they are."""
    model, cluster = load_model("llama-3.2-1b"), load_cluster("2x8xA100-SXM-80+1x8xV100-SXM2")
    job = make_job(global_batch=120, seq_len=4096, precision="fp16")
    usual, careful = plan(model, cluster, job), plan(model, cluster, job, indifference=0.1)
    assert set(usual.best.gpus_by_type) == {"A100-SXM-80", "V100-SXM2"} and usual.passed_over is None
    assert set(careful.best.gpus_by_type) == {"A100-SXM-80"} and careful.passed_over is not None
    assert 0.01 < careful.passed_over.saving < 0.1
    assert usual.search.gap is not None and careful.search.gap is not None and usual.search.gap < careful.search.gap


def test_the_gap_and_the_bound_are_of_plain_seconds() -> None:
    found = ranked()
    assert found.passed_over is not None
    least = found.passed_over.plan.iteration_seconds
    assert found.best.predicted.lower_bound_seconds == pytest.approx(least, rel=1e-9)
    assert found.search.gap == pytest.approx(found.best.iteration_seconds / least - 1.0, rel=1e-6)


def test_rare_switches_count_among_searches_with_several_options() -> None:
    found = ranked()
    assert found.passed_over is not None
    both = replace(found, plans=(found.best, found.passed_over.plan))
    assert both.search.indifference == 0.05
    assert best_of([both, both], 2).best.optimizer.sharding == found.best.optimizer.sharding


def test_what_is_asked_for_comes_first_without_more_words() -> None:
    found = ranked("sharding=zero2")
    assert found.best.optimizer.sharding == "zero2"
    assert found.passed_over is None
    assert found.search.gap == 0.0


def test_offload_comes_first_where_nothing_fits_without_it() -> None:
    job = make_job(global_batch=8, seq_len=2048)
    found = plan(load_model("llama-2-7b"), load_cluster("1x1xA100-SXM-80"), job, efficiency=Analytic())
    assert found.best.optimizer.offload > 0.0
    assert found.passed_over is None


def test_every_report_names_what_was_passed_over() -> None:
    found = ranked()
    words = "ZeRO-2 (6 of 3,228 published runs) would take"
    for text in (first_screen(found), ranking_text(found)):
        assert words in " ".join(text.split())
    document = ranking_document(found)["passed_over"]
    assert isinstance(document, dict)
    assert document["pins"] == ["sharding=zero2"]
    (switch,) = document["switches"]
    assert (switch["kind"], switch["name"], switch["runs"], switch["of"]) == ("rare_switch", "ZeRO-2", 6, 3228)


def on_a100s(*pins: str) -> Ranking:
    cluster, job = load_cluster("4x8xA100-SXM-80"), make_job(global_batch=128, seq_len=4096)
    return plan(load_model("llama-2-70b"), cluster, job, space=parse_pins(pins), efficiency=Analytic())


def test_the_best_plan_without_rare_switches_stands_beside_one_that_has_some() -> None:
    """No Ampere run of a dense model has tensor-parallel overlap, nor context parallelism; ZeRO-2 hardly any run."""
    ranking = on_a100s()
    assert [switch.name for switch in rare_in(ranking.best)] == ["tensor-parallel overlap"]
    usual = with_usual(ranking, efficiency=Analytic()).usual
    assert usual is not None and rare_in(usual.plan) == ()
    pinned = on_a100s("overlap_tp=no", "cp=1", "sharding=none,zero1,zero3", "offload=0", "vpp=1,2,4,5,10")
    assert usual.plan.iteration_seconds == pinned.best.iteration_seconds
    assert usual.loss == pytest.approx(usual.plan.iteration_seconds / ranking.best.iteration_seconds - 1.0)
    assert usual.loss > 0.01 and usual.pins == ("overlap_tp=no",)
    assert on_a100s(*usual.pins).best.iteration_seconds == usual.plan.iteration_seconds
    screen = " ".join(first_screen(replace(ranking, usual=usual)).split())
    named = "tensor-parallel overlap (0 of 1,249 published runs of dense models on Ampere)"
    assert f"hardly tested: {named}, {usual.loss:.1%} slower without" in screen
    text = " ".join(ranking_text(replace(ranking, usual=usual)).split())
    assert f"takes {usual.loss:.1%} more time" in text and "--set overlap_tp=no asks for it" in text
    document = ranking_document(replace(ranking, usual=usual))["usual"]
    assert isinstance(document, dict) and document["pins"] == ["overlap_tp=no"]


def test_nothing_stands_beside_a_plan_of_what_was_measured_or_of_several_types() -> None:
    assert with_usual(ranked("sharding=zero1"), efficiency=Analytic()).usual is None
    assert with_usual(over()).usual is None


@cache
def over(*pins: str) -> Ranking:
    """Return the plans for machines of two types."""
    job = make_job(global_batch=19, seq_len=4096)
    return plan(MODEL, load_cluster("1x4xRTX3090+1x2xA100-40"), job, space=parse_pins(pins), gap=0.2)


def test_plans_that_are_as_good_are_in_the_order_of_their_rare_switches() -> None:
    found = over()
    assert set(found.best.gpus_by_type) == {"A100-SXM-40", "RTX3090"} and found.best.optimizer.offload > 0.0
    seconds = [plan.iteration_seconds for plan in found.plans]
    near = [value <= 1.01 * min(seconds) for value in seconds]
    keys = [(not close, len(rare_in(plan)) if close else 0) for plan, close in zip(found.plans, near, strict=True)]
    assert keys == sorted(keys)
    asked = over("gpus=6").best
    assert asked.iteration_seconds == found.best.iteration_seconds


def test_a_plan_over_several_types_that_saves_little_is_named_with_its_pin() -> None:
    found = over("gpus=6")
    mixed = found.best
    searched = Pipelines(
        MixedOutcome(
            plans=found.plans, uniform=None, uniform_rule="", bound=0.0, candidates=1, costed=1, not_covered=()
        ),
        seconds=0.0,
    )
    alone = over("gpus=2")
    told = passed_over([], mixed.cluster, searched, None, 1.03 * mixed.iteration_seconds, alone.best)
    assert told is not None and told.plan is mixed and told.saving == pytest.approx(1.0 - 1.0 / 1.03)
    assert [switch.name for switch in told.switches] == ["several GPU types", "unreported GPU types"]
    assert told.pins == ("gpus=6",)
    assert passed_over([], mixed.cluster, searched, None, affordable_value(mixed) or 0.0, alone.best) is None
    text = " ".join(first_screen(replace(alone, passed_over=told)).split())
    assert "4 RTX3090: left idle, as a faster plan with them, named below, gains less than --indifference." in text
    assert "several GPU types (23 of 3,228 published runs) and unreported GPU types (0 of 3,228" in text
    assert "--set gpus=6 asks for it" in text
