"""Options of the trainer: pinned, constrained by rules, chosen among, kept in files, refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.golden.plans import PLANS

import shardwright
from shardwright.errors import SpecError
from shardwright.plans.check import check
from shardwright.plans.document import dumps, from_document, to_document
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Ranking
from shardwright.search.combinations import best_of
from shardwright.search.rules.rules import parse_rules
from shardwright.search.space.axes import parse_pins
from shardwright.search.summary import with_bound
from shardwright.spec.options import Options

MODEL = shardwright.load_model("deepseek-v2-lite")
CLUSTER = shardwright.load_cluster("2x8xH100-SXM")
JOB = shardwright.make_job(global_batch=64, seq_len=4096)


def _plan(*pins: str, rules: str = "", **told: Any) -> Ranking:
    job = replace(JOB, **told)
    limits = parse_rules(rules, "rules")
    return shardwright.plan(MODEL, CLUSTER, job, space=parse_pins(pins), rules=limits, top=2)


def _seconds(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.iteration_seconds


def test_options_that_are_pinned_are_in_the_plan_and_its_file() -> None:
    best = _plan("exp_avg_dtype=bf16", "exp_avg_sq=fp8", "grad_reduce=bf16", "recompute_modules=mlp+moe_act").best
    wanted = Options(exp_avg="bf16", exp_avg_sq="fp8", grad_reduce="bf16", recompute_modules=("moe_act", "mlp"))
    assert best.job.options == wanted and best.optimizer.sharding == "zero1" and not check(best)
    text = dumps(best)
    assert from_document(json.loads(text)) == best and '"exp_avg_sq": "fp8"' in text


def test_a_plan_without_options_says_nothing_of_them() -> None:
    for plan in PLANS.values():
        assert "options" not in to_document(plan)["job"]
        assert to_document(replace(plan, job=replace(plan.job, options=Options()))) == to_document(plan)


def test_the_best_of_several_values_is_the_best_of_their_searches() -> None:
    one = [_plan(f"dispatcher={name}") for name in ("alltoall", "flex")]
    both = _plan("dispatcher=alltoall,flex")
    assert _seconds(both.best) == min(_seconds(each.best) for each in one)
    assert both.search.candidates == sum(each.search.candidates for each in one)
    assert both.search.costed + sum(count for _, count in both.search.rejected) == both.search.candidates
    every = sorted(_seconds(plan) for each in one for plan in each.plans)
    assert [_seconds(plan) for plan in both.plans] == every[:2]
    assert _plan("dispatcher=default").best == _plan().best


def test_the_bound_of_several_searches_is_the_least_though_their_plans_are_not_shown() -> None:
    shown, other = _plan("loss=fused"), _plan("loss=unfused")
    low = 0.5 * _seconds(shown.best)
    other = replace(other, plans=tuple(with_bound(plan, low) for plan in other.plans))
    assert _seconds(shown.best) < _seconds(other.best)
    (only,) = best_of([shown, other], top=1).plans
    assert only.prediction is not None and only.prediction.lower_bound_seconds == low


def test_rules_speak_of_options() -> None:
    left = _plan("grad_reduce=fp32,bf16", rules="$grad_reduce == bf16").best
    assert left.job.options.grad_reduce == "fp32"
    kept = _plan(rules="$grad_reduce == bf16 || $recompute_modules == 'mlp+moe'").best
    assert kept == _plan().best
    assert not _plan(rules="$dispatcher == None").plans


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ("recompute_modules=attention", "joined by + of core_attn, moe_act"),
        ("dispatcher=nccl", "one of alltoall, allgather, flex, or default"),
        ("exp_avg=bf16+fp8", "is no value of exp_avg"),
        ("token_dispatch=flex", "there is no parameter"),
    ],
)
def test_a_pin_that_cannot_be_read_is_named(pin: str, message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("+", r"\+")):
        parse_pins([pin])


@pytest.mark.parametrize(
    ("pins", "told", "message"),
    [
        (("grad_reduce=bf16",), {"precision": "fp16"}, "is bf16 with precision fp16"),
        (("exp_avg=bf16",), {"optimizer": "sgd"}, "belongs to Adam"),
        (("loss=fused",), {"framework": "torchtitan"}, "is not torchtitan's to choose"),
        (("grad_reduce=fp32", "main_grads=bf16"), {}, "gradients are reduced in fp32"),
        (("recompute_modules=layernorm",), {"precision": "fp8"}, "delayed scaling cannot run again"),
    ],
)
def test_options_that_do_not_go_together_are_refused(pins: tuple[str, ...], told: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        _plan(*pins, **told)


def test_a_dense_model_has_no_experts_to_choose_for() -> None:
    model = shardwright.load_model("llama-3.1-8b")
    for pin, words in (("dispatcher=flex", "no experts"), ("recompute_modules=mla_up_proj", "no latent attention")):
        with pytest.raises(SpecError, match=words):
            shardwright.plan(model, CLUSTER, JOB, space=parse_pins([pin]))
