"""Reports for the terminal: complete, within the width, money only with its time."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from tests.golden.plans import PLANS
from tests.reports.costed import SEARCH, costed, flat, ranking_of

from shardwright.errors import Problem
from shardwright.plans.findings import Change, MoreMachines, MoreMemory, PinsTooTight, Shortage
from shardwright.plans.ranking import Baseline, Evaluation, NoPlan, Origin, Ranking
from shardwright.reports.documents.ranking import evaluation_document, ranking_document
from shardwright.reports.text.evaluation import evaluation_text
from shardwright.reports.text.explain import nearest_words
from shardwright.reports.text.outcome import bottleneck
from shardwright.reports.text.plans import plan_text
from shardwright.reports.text.terminal import infeasible_text, ranking_text

BASELINES = (
    Baseline(rule="smallest tp × pp that fits", plan=costed(seconds={"forward_seconds": 7.75})),
    Baseline(rule="data parallel only", plan=None, failure=Shortage(500e9, 80e9)),
)


def text_of(*, tokens: float | None = 2e12, dollars: float | None = 3000.0, width: int = 110) -> str:
    best = costed(job={"tokens": tokens}, dollars_per_hour=dollars)
    second = costed(
        job={"tokens": tokens}, dollars_per_hour=dollars, seconds={"bubble_seconds": 3.0}, flash_attention=False
    )
    return ranking_text(ranking_of(best, second, baselines=BASELINES), width)


def test_a_report_says_everything_that_it_should() -> None:
    text = flat(text_of())
    for words in (
        "llama-2-70b: 69 B parameters, 80 layers",
        "32 × 8 H100-SXM (256 GPUs)",
        "15.000 s an iteration",
        "20% less time (1.25× as fast, 80% sure: 1.11 to 1.41) than the best rule of thumb",
        "256 H100-SXM = tensor 8 × pipeline 4 × data 8",
        "512 = 64 micro-batches of 1 × 8 replicas",
        "interleaved 1F1B, 2 virtual stages a rank",
        "selective: core attention",
        "stage 3",
        "60.0 GiB of 80.0 GiB",
        "tensor-parallel communication █",
        "80% sure: 13.500 s to 18.000 s an iteration",
        "fits with probability 95%",
        "compute of stage 1",
        "2: +10.00% time: FlashAttention off (best on); costs 1.5 s more pipeline bubble",
        "18.750 s +25% smallest tp × pp that fits: tp 8, pp 4, dp 8, vpp 2, micro-batch 1",
        "data parallel only: needs 465.7 GiB of 74.5 GiB",
        "1,000 candidates in 500 ms (2 k a second), 10 costed one by one",
        "700 memory: does not fit in memory",
        "290 rule no tp phases",
        "phases in ms: enumerate 200, refine 300",
    ):
        assert words in text, words


def test_no_cost_without_its_run_time() -> None:
    text = flat(text_of())
    found = re.search(r"All tokens in (\S+) days \(80% sure: (\S+) days to (\S+) days\) for \$(\S+) M \(", text)
    assert found is not None
    days, low, high, millions = (float(found[place]) for place in (1, 2, 3, 4))
    assert days > 165.6 and millions > 11.92, "failures make the run longer and dearer"
    assert low == pytest.approx(0.9 * days, abs=0.1) and high == pytest.approx(1.2 * days, abs=0.1)
    assert f"all tokens take {days} days and ${millions} M, including failures and restarts" in text
    without = text_of(tokens=None)
    assert "$ run" not in without
    assert "all tokens" not in without.casefold()
    assert "$3,000 an hour" in without
    unknown = flat(text_of(dollars=None))
    assert "$" not in unknown
    assert f"{days} days for all tokens; price unknown" in unknown


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [80, 110, 160])
def test_lines_keep_within_the_width(name: str, width: int) -> None:
    plan = costed(name, gib=(70.0, 60.0))
    text = ranking_text(ranking_of(plan, baselines=BASELINES), width)
    assert max(map(len, text.splitlines())) <= width
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("name", PLANS)
def test_shares_of_the_time_add_up_to_the_iteration(name: str) -> None:
    lines = plan_text(costed(name), "Best plan", 110).splitlines()
    shares = [float(line.split("%")[0].split()[-1]) for line in lines if line.endswith(" s") and "%" in line]
    assert sum(shares) == pytest.approx(100.0, abs=0.5)


def test_short_iterations_are_told_in_milliseconds() -> None:
    seconds = dict.fromkeys(
        ("backward_seconds", "bubble_seconds", "tensor_parallel_seconds", "data_parallel_seconds", "pipeline_seconds"),
        0.0,
    )
    text = ranking_text(ranking_of(costed(seconds={**seconds, "forward_seconds": 0.0123})))
    assert "12.300 ms an iteration" in text
    assert "80% sure: 11.070 ms to 14.760 ms" in text


def test_of_many_stages_the_fullest_is_shown() -> None:
    plan = costed("llama-2-70b-interleaved")
    stages = plan.replicas[0].stages * 8
    many = replace(plan, replicas=(replace(plan.replicas[0], stages=stages),))
    memory = many.predicted.memory[0] * 8
    full = costed(gib=(79.0,)).predicted
    memory = (*memory[:20], full.memory[0][0], *memory[21:])
    text = plan_text(many.costed(replace(many.predicted, memory=(memory,))), "Best plan", 110)
    shown = [line.split()[1] for line in text.splitlines() if line.startswith("    stage ")]
    assert shown == ["0", "1", "2", "3", "4", "5", "6", "7", "20", "28", "29", "30", "31"]
    assert "    … 12 more\n" in text
    assert "fullest: activations 39.5 GiB" in text


def test_infeasible_says_why_and_what_would_help() -> None:
    plan = PLANS["llama-2-70b-interleaved"]
    ranking = Ranking(
        plans=(),
        baselines=BASELINES[1:],
        search=SEARCH,
        infeasible=NoPlan(reason=PinsTooTight(), remedies=(MoreMachines(3, 8, "H200"), MoreMemory(110 * 2**30))),
    )
    text = infeasible_text(ranking, plan.model, plan.cluster, plan.job)
    reason = "nothing fits with the parameters that --set pins"
    remedies = ["3 machines of 8 × H200 would do", "GPUs with 110.0 GiB of memory would do"]
    assert f"No plan: {reason}\n  - {remedies[0]}\n  - {remedies[1]}" in text
    assert "data parallel only: needs 465.7 GiB of 74.5 GiB" in text
    pinned = infeasible_text(replace(ranking, baselines=BASELINES), plan.model, plan.cluster, plan.job)
    assert "expert" not in pinned
    document: Any = ranking_document(ranking)
    assert document["plans"] == []
    assert document["infeasible"]["reason"] == {"kind": "pins_too_tight", "words": reason}
    assert [remedy["words"] for remedy in document["infeasible"]["remedies"]] == remedies
    assert document["infeasible"]["remedies"][0]["machines"] == 3


def test_an_evaluation_shows_both_plans_and_every_second() -> None:
    best = costed()
    mine = costed(seconds={"recompute_seconds": 3.0}, sequence_parallel=False)
    result = Evaluation(plan=mine, best=ranking_of(best))
    text = flat(evaluation_text(result, (), Origin(("read --foo as 3",))))
    for words in (
        "the best plan takes 15.000 s an iteration, 17% less time (1.20× as fast, 80% sure: ",
        "sequence parallel off on",
        "recomputation 3.000 s 0.000 s +3.000 s",
        "an iteration 18.000 s 15.000 s +3.000 s",
        "3 s more recomputation",
        "read --foo as 3",
    ):
        assert words in text, words
    document: Any = evaluation_document(result, (), Origin())
    assert document["fits"] is document["legal"] is True
    assert document["terms"]["recompute_seconds"] == {"plan": 3.0, "best": 0.0, "difference": 3.0}
    assert document["settings"] == {"sequence_parallel": {"words": "sequence parallel", "plan": "off", "best": "on"}}


def test_a_plan_that_does_not_fit_is_told_what_would_make_it_fit() -> None:
    mine = costed(gib=(100.0,))
    result = Evaluation(plan=mine, best=ranking_of(costed()), remedies=(Change.SELECTIVE_RECOMPUTATION,))
    problem = Problem("micro_batch", "is 3", "use 2")
    text = evaluation_text(result, (problem,), Origin())
    assert text.index("Not legal\n  - micro_batch: is 3 (use 2)") < text.index("Your plan")
    assert "stage 0 needs 100.0 GiB of 80.0 GiB" in text
    assert text.count("too much") == 4
    assert "it fits with selective recomputation" in text
    document: Any = evaluation_document(result, (problem,), Origin())
    assert document["fits"] is document["legal"] is False
    assert document["violations"] == [{"path": "micro_batch", "message": "is 3", "hint": "use 2"}]
    assert len(document["shortage"]) == 4


def test_the_bottleneck_begins_with_what_takes_longest() -> None:
    slow = costed(seconds={"tensor_parallel_seconds": 40.0}).predicted
    said = bottleneck(slow)
    assert said.startswith("tensor-parallel communication (") and ", then compute of stage 1 (" in said


def test_a_nearest_plan_that_takes_no_longer_is_said_to() -> None:
    plan = costed()
    slower = costed(seconds={"bubble_seconds": 3.0})
    assert "an iteration, as long (priced" in nearest_words(plan, plan)
    assert "% more (priced" in nearest_words(plan, slower)
