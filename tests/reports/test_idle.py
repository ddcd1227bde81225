"""GPUs that a plan leaves idle are named, with the reason."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from shardwright import load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.plans.ranking import PassedOver, Ranking
from shardwright.reports.text.mixed import idle_sentence, idle_words
from shardwright.reports.text.terminal import ranking_text
from shardwright.search.planner import plan
from shardwright.spec.read.cluster import build_cluster


@cache
def planned(other: str) -> Ranking:
    nodes = [{"count": 1, "gpu": gpu, "gpus": 8, "price_per_hour": 10} for gpu in ("A100-SXM-80", other)]
    run = make_job(global_batch=64, seq_len=2048)
    return plan(
        load_model("llama-3.2-1b"),
        build_cluster({"nodes": nodes}, "c"),
        run,
        efficiency=Analytic(),
        exportable_to="megatron",
    )


def test_gpus_that_cannot_compute_in_the_precision_are_said_to_be_idle() -> None:
    ranking = planned("V100-SXM2")
    assert idle_words(ranking.best) == "8 V100-SXM2, which cannot compute in bf16"
    text = " ".join(ranking_text(ranking).split())
    assert text.count("8 V100-SXM2, which cannot compute in bf16") == 2


def test_gpus_that_a_plan_does_without_are_said_to_be_idle() -> None:
    ranking = planned("H100-SXM")
    ranking = replace(ranking, search=replace(ranking.search, gap=0.01))
    assert idle_sentence(ranking) == ("8 A100-SXM-80: left idle, as no faster plan with them was found.")


def test_room_for_a_better_plan_is_not_that_of_the_plan_passed_over() -> None:
    ranking = planned("H100-SXM")
    wide = replace(ranking, search=replace(ranking.search, gap=0.06, not_covered=()), passed_over=None)
    assert "there may be one that is better by up to 6%" in idle_sentence(wide)
    faster = PassedOver(plan=ranking.best, saving=1.0 - 1.0 / 1.06, switches=(), pins=())
    assert idle_sentence(replace(wide, passed_over=faster)) == (
        "8 A100-SXM-80: left idle, as no faster plan with them was found; by the proof none is better than the plan "
        "passed over, named below."
    )
    assert "up to 6%" in idle_sentence(replace(wide, passed_over=replace(faster, saving=0.02)))


def test_nothing_is_said_where_all_gpus_work() -> None:
    ranking = planned("A100-SXM-80")
    assert idle_words(ranking.best) == idle_sentence(ranking) == ""


def test_gpus_on_which_the_framework_runs_nothing_are_said_to_be_idle() -> None:
    """Megatron-LM is written for CUDA, however many Gaudis there are, and DeepEP for NVIDIA's GPUs."""
    nodes = [{"count": count, "gpu": gpu, "gpus": 8} for count, gpu in ((8, "Gaudi3"), (1, "H100-SXM"))]
    job = make_job(global_batch=64, seq_len=2048, framework="megatron")
    ranking = plan(load_model("llama-3.2-1b"), build_cluster({"nodes": nodes}, "c"), job, efficiency=Analytic())
    assert set(ranking.best.gpus_by_type) == {"H100-SXM"}
    assert idle_sentence(ranking) == "64 Gaudi3, on which megatron does not run this job: left idle."
