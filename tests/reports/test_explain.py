"""How plans differ, in words and figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports.costed import SECONDS, costed

from shardwright.errors import Problem, merged
from shardwright.plans.plan import Overlap, Schedule
from shardwright.reports.text.explain import (
    changes,
    contrast,
    gaps,
    reasons,
    saving,
    shortages,
    value,
    verdict,
)

TIMES = st.fixed_dictionaries({name: st.floats(0.001, 10.0) for name in SECONDS})


@given(TIMES, TIMES)
def test_the_terms_add_up_to_the_difference_of_the_iterations(mine: dict[str, float], best: dict[str, float]) -> None:
    ours, theirs = costed(seconds=mine), costed(seconds=best)
    whole = ours.iteration_seconds - theirs.iteration_seconds
    assert sum(gap.seconds for gap in gaps(ours, theirs)) == pytest.approx(whole, abs=1e-9)


def test_a_plan_does_not_differ_from_itself() -> None:
    plan = costed()
    assert changes(plan, plan) == {}
    assert reasons(plan, plan) == []
    assert verdict(plan, plan).words == "no plan of the space is better by more than 0.1%"


def test_reasons_name_the_largest_loss_first_and_what_causes_it() -> None:
    best = costed()
    replica = best.replicas[0]
    fewer = replace(replica, micro_batches=replica.micro_batches // 4)
    mine = costed(
        seconds={"bubble_seconds": 4.5, "tensor_parallel_seconds": 2.0, "forward_seconds": 3.9},
        micro_batch=4,
        replicas=(fewer,),
        overlap=Overlap(grad_reduce=True, param_gather=True, pipeline=True),
        schedule=Schedule(),
    )
    lines = reasons(mine, best)
    assert lines[0].startswith("3 s more pipeline bubble: micro-batch 4 makes 16 micro-batches for 4 pipeline ranks;")
    assert "micro-batch 1 makes 64 micro-batches for 4 pipeline ranks of 2 virtual stages" in lines[0]
    assert "overlap of tensor-parallel communication off, the best on" in lines[1]
    assert lines[2].startswith("100 ms less forward")
    assert len(lines) == 3
    assert changes(mine, best)["micro_batch"] == ("4", "1")
    assert "micro-batch 4 (best 1)" in contrast(mine, best)
    assert "costs 3 s more pipeline bubble" in contrast(mine, best)


def test_an_overlap_explains_only_what_it_can() -> None:
    best = costed()
    without = Overlap(grad_reduce=True, param_gather=True, pipeline=True)
    more = costed(seconds={"tensor_parallel_seconds": 2.0}, overlap=without)
    less = costed(seconds={"tensor_parallel_seconds": 0.5}, overlap=without)
    assert reasons(more, best) == [
        "1 s more tensor-parallel communication: overlap of tensor-parallel communication off, the best on"
    ]
    assert reasons(less, best) == ["500 ms less tensor-parallel communication"]


def test_verdicts() -> None:
    best, slow = costed(), costed(seconds={"forward_seconds": 7.75})
    assert verdict(slow, best).words == (
        "the best plan takes 15.000 s an iteration, 20% less time (1.25× as fast, 80% sure: 1.11 to 1.41)"
    )
    close = verdict(costed(seconds={"forward_seconds": 4.75}), best)
    assert close.words.endswith("(1.05× as fast, 80% sure: 0.93 to 1.19; which of the two is faster is not sure)")
    assert close.ratio == pytest.approx((0.9303, 1.1851), abs=1e-3)
    large = costed(seconds={"forward_seconds": 1.0}, gib=(100.0,))
    assert "does not fit" in verdict(large, best).words
    assert "less time" not in verdict(large, best).words
    assert "cannot run" in verdict(slow, best, legal=False).words
    assert verdict(slow, None).words == "no plan at all fits these machines"


def test_where_cost_is_the_aim_money_decides() -> None:
    cheap = costed(dollars_per_hour=1000.0, seconds={"forward_seconds": 9.0}, job={"objective": "cost"})
    fast = costed(dollars_per_hour=3000.0, job={"objective": "cost"})
    assert value(cheap) < value(fast)
    assert "56% less money" in saving(fast, cheap)
    assert "as fast" not in saving(fast, cheap)
    unknown = costed(dollars_per_hour=None, job={"objective": "cost"})
    assert value(unknown) == 15.0


def test_shortage_names_every_stage_the_worst_first() -> None:
    lines = [stage.words for stage in shortages(costed(gib=(90.0, 100.0, 60.0, 85.0)))]
    assert [line.split()[1] for line in lines] == ["1", "0", "3"]
    assert lines[0].startswith("stage 1 needs 100.0 GiB of 80.0 GiB (activations 50.0 GiB, gradients 15.0 GiB")
    assert lines[1] == "stage 0 needs 90.0 GiB of 80.0 GiB"


def test_problems_of_many_stages_become_one() -> None:
    places = [0, 1, 2, 5]
    many = [Problem(f"replicas[0].stages[{place}].gpu", "unknown", "use another") for place in places]
    other = Problem("micro_batch", "too large")
    assert merged([*many, other]) == (Problem("replicas[0].stages[0–2, 5].gpu", "unknown", "use another"), other)
    apart = [Problem("replicas[0].count", "is 0"), Problem("replicas[1].stages[0].gpu", "is 0")]
    assert merged(apart) == tuple(apart)
