"""What is taken where a run says nothing, and rows that contradict themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.validation.known import known_runs

import shardwright
from shardwright.cost.compute.efficiency import Analytic
from shardwright.errors import SpecError
from shardwright.validation.case import CONTRADICTS, Case, case_of
from shardwright.validation.facts import Default, SkippedRunError, said
from shardwright.validation.forecast import forecast
from shardwright.validation.runs import PublishedRun

RUN = known_runs()["8a16e6807f"]
BRIDGE = PublishedRun(row_id="x", framework="megatron-bridge")
EXPERTS = replace(
    BRIDGE,
    model="mixtral-8x7b", gpu="H100-SXM", n_gpus=8.0, tp=1.0, pp=1.0, ep=1.0, seq_len=4096.0, global_batch=64.0,
    micro_batch=1.0, precision="bf16", measured_iter_time_s=60.0,
)  # fmt: skip
SPLIT = replace(EXPERTS, model="llama-3-8b", tp=8.0, recompute="none", framework="mlperf/nemo", seq_parallel="True")


def test_what_a_run_says_goes_before_the_default() -> None:
    assert said(BRIDGE, "tp_overlap", "Hopper") == Default(value="true")
    assert said(replace(BRIDGE, tp_overlap="false"), "tp_overlap", "Hopper") == Default(value="false")
    assert said(replace(BRIDGE, framework="megatron-lm"), "tp_overlap", "Hopper") == Default()
    assert said(BRIDGE, "fp32_matmul", "Hopper").value == "tf32"
    assert said(BRIDGE, "fp32_matmul", "Volta").value == "ieee", "it has no such arithmetic"


def test_a_default_in_doubt_is_forecast_both_ways_and_the_interval_spans_both() -> None:
    assert said(SPLIT, "tp_overlap", "Hopper") == Default(value="true", other="false")
    unsaid, on, off = (case_of(replace(SPLIT, tp_overlap=words)) for words in ("", "true", "false"))
    assert [case.row["overlap_tp"] for case in (unsaid, on, off)] == [True, True, False]
    assert [[other.row for other in case.others] for case in (unsaid, on, off)] == [[off.row], [], []]
    both = forecast([unsaid, on, off], Analytic())
    assert both.seconds[0] == both.seconds[1] < both.seconds[2]
    assert both.low_seconds[0] == pytest.approx(both.low_seconds[1])
    assert both.high_seconds[0] == pytest.approx(both.high_seconds[2])


def test_a_recipe_graphs_from_its_release_on_and_what_is_in_doubt_is_forecast_in_every_way() -> None:
    recipe = replace(
        EXPERTS, model="qwen3-30b-a3b", gpu="GB200", framework="megatron-bridge", precision="mxfp8", ep=8.0,
        gpus_per_node=4.0, recompute="none",
    )  # fmt: skip

    def taken(case: Case) -> tuple[str | None, str | None]:
        return case.job.options.cuda_graph, case.job.options.exchange_overlap

    for version in ("26.06", "26.08.01", ""):
        case = case_of(replace(recipe, version=version))
        assert taken(case) == ("full", "batches")
        assert {taken(other) for other in case.others} == {
            ("attention", "batches"), ("full", None), ("attention", None)
        }  # fmt: skip
        assert not any(other.others for other in case.others)
        seconds = forecast([case, *case.others], Analytic()).seconds
        (both,) = forecast([case], Analytic()).high_seconds
        assert both >= seconds.max()
    for unlike in ({"version": "26.04.01"}, {"precision": "bf16"}, {"gpu": "H100-SXM", "precision": "fp8"}):
        assert taken(case_of(replace(recipe, **{"version": "26.06"} | unlike))) == (None, None)
    said_so = case_of(replace(recipe, version="26.06", cuda_graph="none", a2a_overlap="false"))
    assert (taken(said_so), said_so.others) == (("none", None), ())


def test_the_interval_spans_every_recomputation_that_may_have_fitted() -> None:
    levels = [
        forecast([case_of(replace(SPLIT, tp_overlap="true", recompute=word))], Analytic()) for word in ("none", "full")
    ]
    (none,), (full,) = (level.seconds for level in levels)
    unsaid = forecast([case_of(replace(SPLIT, tp_overlap="true", recompute=""))], Analytic())
    assert unsaid.seconds[0] == none < full
    assert unsaid.low_seconds[0] == pytest.approx(levels[0].low_seconds[0])
    assert unsaid.high_seconds[0] == pytest.approx(levels[1].high_seconds[0])


def test_products_in_tf32_are_refused_by_name() -> None:
    for changes in ({"precision": "tf32"}, {"precision": "fp32", "fp32_matmul": "tf32"}, {"precision": "fp32"}):
        with pytest.raises(SkippedRunError, match="products in tf32"):
            case_of(replace(SPLIT, framework="megatron-lm", **changes))
    assert case_of(replace(SPLIT, precision="fp32", fp32_matmul="ieee")).job.precision == "fp32"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"measured_iter_time_s": 1.0, "measured_tokens_per_s_per_gpu": None}, "of its arithmetic at the peak"),
        ({"measured_tokens_per_s_per_gpu": 1100.0}, "its tokens a second times its seconds"),
        ({"measured_mem_gb": 96.0}, "96 GB are more than"),
    ],
)
def test_a_row_that_contradicts_itself_is_named(changes, words) -> None:
    with pytest.raises(SkippedRunError, match=words) as caught:
        case_of(replace(RUN, **changes))
    assert caught.value.skip.kind == CONTRADICTS
    with pytest.raises(SpecError, match=rf"run 8a16e6807f.*{words}"):
        shardwright.validate([RUN, replace(RUN, **changes)])
    assert case_of(replace(RUN, quality="C", **changes)).run.quality == "C", "what is known to be poor is not checked"


def test_one_rank_with_all_experts_has_no_use_for_deepep() -> None:
    assert case_of(EXPERTS).row["ep"] == 1
    with pytest.raises(SkippedRunError, match="ep is 1, but DeepEP"):
        case_of(replace(EXPERTS, dispatcher="flex"))
