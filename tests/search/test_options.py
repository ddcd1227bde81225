"""Options of the trainer: pinned, constrained by rules, chosen among, kept in files, refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.golden.plans import PLANS
from tests.nightly import nightly

import shardwright
from shardwright import Ranking, SpecError, check, replan
from shardwright.cost.compute.efficiency import Analytic
from shardwright.plans.document import dumps, from_document, to_document
from shardwright.plans.findings import Lack, MixedPlans, TooLittleMemory
from shardwright.reports.text.explain import value
from shardwright.search.planner import on_fewer, plan, with_nearby
from shardwright.search.ranked import best_of, with_bound
from shardwright.search.rules.rules import parse_rules
from shardwright.search.space.axes import parse_pins
from shardwright.spec.options import VALUES, Options

MODEL = shardwright.load_model("deepseek-v2-lite")
CLUSTER = shardwright.load_cluster("2x8xH100-SXM")
JOB = shardwright.make_job(global_batch=64, seq_len=4096)


@cache
def _plan(*pins: str, rules: str = "", **told: Any) -> Ranking:
    job = replace(JOB, **told)
    limits = parse_rules(rules, "rules")
    return plan(MODEL, CLUSTER, job, space=parse_pins(pins), rules=limits, top=2)


def test_options_that_are_pinned_are_in_the_plan_and_its_file() -> None:
    best = _plan("exp_avg_dtype=bf16", "exp_avg_sq=fp8", "grad_reduce=bf16", "recompute_modules=mlp+moe_act").best
    wanted = Options(exp_avg="bf16", exp_avg_sq="fp8", grad_reduce="bf16", recompute_modules=("moe_act", "mlp"))
    assert best.job.options == wanted and best.optimizer.sharding == "zero1" and not check(best)
    text = dumps(best)
    assert from_document(json.loads(text)) == best and '"exp_avg_sq": "fp8"' in text


def test_a_plan_without_options_says_nothing_of_them() -> None:
    for known in PLANS.values():
        assert "options" not in to_document(known)["job"]
        assert to_document(replace(known, job=replace(known.job, options=Options()))) == to_document(known)


def test_the_best_of_several_values_is_the_best_of_their_searches() -> None:
    one = [_plan(f"dispatcher={name}") for name in ("alltoall", "flex")]
    both = _plan("dispatcher=alltoall,flex")
    assert both.best.iteration_seconds == min(each.best.iteration_seconds for each in one)
    assert both.search.candidates == sum(each.search.candidates for each in one)
    assert both.search.costed + sum(count for _, count in both.search.rejected) == both.search.candidates
    every = sorted(plan.iteration_seconds for each in one for plan in each.plans)
    assert [plan.iteration_seconds for plan in both.plans] == every[:2]
    assert _plan("dispatcher=default").best == _plan().best


def test_the_bound_of_several_searches_is_the_least_though_their_plans_are_not_shown() -> None:
    shown, other = _plan("loss=fused"), _plan("loss=unfused")
    low = 0.5 * shown.best.iteration_seconds
    other = replace(other, plans=tuple(with_bound(plan, low) for plan in other.plans))
    assert shown.best.iteration_seconds < other.best.iteration_seconds
    (only,) = best_of([shown, other], top=1).plans
    assert only.predicted.lower_bound_seconds == low


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
        (("dispatcher=flex",), {"framework": "torchtitan"}, "is not torchtitan's to choose"),
        (("loss=fused",), {"framework": "torchtitan"}, "which is Megatron-LM's to choose"),
        (("loss=chunked",), {}, "which Megatron-LM has not"),
        (("master_weights=none",), {"framework": "fsdp", "precision": "fp16"}, "with precision fp16"),
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
            plan(model, CLUSTER, JOB, space=parse_pins([pin]))


def test_the_gap_of_several_searches_is_that_of_the_best_plan_above_the_least_bound() -> None:
    shown, other = _plan("loss=fused"), _plan("loss=unfused")
    ahead, behind = shown.best.iteration_seconds, other.best.iteration_seconds
    other = replace(
        other,
        plans=tuple(with_bound(plan, 0.9 * ahead) for plan in other.plans),
        search=replace(other.search, gap=behind / (0.9 * ahead) - 1.0),
    )
    both = best_of([shown, other], top=1).search
    assert both.gap == pytest.approx(1.0 / 0.9 - 1.0)
    counts = [count for _, count in both.rejected]
    assert counts == sorted(counts, reverse=True)


DENSE = shardwright.load_model("opt-1.3b")
NARROW = parse_pins(["exp_avg=bf16"])


def _dense(cluster: str, **told: Any) -> Ranking:
    job = shardwright.make_job(global_batch=64, seq_len=1024)
    machines = shardwright.load_cluster(cluster)
    return plan(DENSE, machines, job, **{"space": NARROW, "efficiency": Analytic(), "top": 1, **told})


def test_one_gpu_alone_has_the_distributed_optimizer_that_options_need() -> None:
    best = _dense("1x1xH100-SXM").best
    assert best.optimizer.sharding == "zero1" and not best.optimizer.offload and not check(best)


def test_what_options_need_is_not_told_as_a_pin_to_leave_free() -> None:
    large, machine = shardwright.load_model("llama-3.1-8b"), shardwright.load_cluster("1x1xA10G")
    nothing = plan(large, machine, JOB, space=NARROW, efficiency=Analytic()).infeasible
    assert nothing is not None and isinstance(nothing.reason, TooLittleMemory)


def test_fewer_machines_have_the_optimizer_that_options_need() -> None:
    best = _dense("4x1xA10G").best
    rows = {row.nodes: row.iteration_seconds for row in on_fewer(best, space=NARROW, efficiency=Analytic())}
    assert rows == {(count,): _dense(f"{count}x1xA10G").best.iteration_seconds for count in (1, 2, 3)}


@pytest.mark.parametrize(
    "told", [{"options": Options(grad_reduce="bf16")}, {"precision": "fp8", "fp8_recipe": "mxfp8"}]
)
def test_what_train_lacks_is_not_planned_to_be_run_by_it(told: dict[str, Any]) -> None:
    job = replace(shardwright.make_job(global_batch=16, seq_len=1024), **told)
    cluster = shardwright.load_cluster("1x4xH100-SXM+1x4xH200")
    ranking = plan(DENSE, cluster, job, efficiency=Analytic())
    assert not any(check(found) for found in ranking.plans)
    lacks = [lack.of for each in ranking.search.not_covered if isinstance(each, MixedPlans) for lack in each.lacking]
    assert lacks == [Lack.TRAINER_OPTION]
    again = replan(ranking.best, shardwright.load_cluster("1x4xH100-SXM+1x2xH200"), efficiency=Analytic())
    assert again is not None and not check(again)


def test_unequal_replicas_are_not_named_beside_what_train_lacks() -> None:
    space = parse_pins(["grad_reduce=bf16"])
    ranking = with_nearby(_dense("3x4xA100-SXM-40", space=space), space=space, efficiency=Analytic())
    assert ranking.nearby and not any(row.shares for row in ranking.nearby)


def test_unequal_replicas_are_not_named_beside_what_is_to_be_exported() -> None:
    ranking = _dense("3x4xA100-SXM-40", space=None)
    told: dict[str, Any] = {"efficiency": Analytic()}
    assert any(row.shares for row in with_nearby(ranking, **told).nearby)
    assert not any(row.shares for row in with_nearby(ranking, exportable_to="megatron", **told).nearby)


def test_a_small_model_is_offered_graphs_of_its_layers() -> None:
    """What the pins ask for is what the offer says, and pins of one's own are not argued with."""
    small = shardwright.make_job(global_batch=64, seq_len=1024)
    offer = shardwright.plan("gpt2", "1x8xH100-SXM", small).with_options
    assert offer is not None and offer.pins == ("cuda_graph=layers",) and offer.saving > 0.05
    asked = shardwright.plan("gpt2", "1x8xH100-SXM", small, pins={"cuda_graph": "layers"})
    assert asked.best.iteration_seconds <= offer.plan.iteration_seconds * 1.0001
    assert asked.with_options is None


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({}, {}),
        ({}, {"pins": {"tp": 2}}),
        ({}, {"rules": ["$num_gpus > 8"]}),
        ({"objective": "cost"}, {}),
        ({"objective": "cost"}, {"pins": {"gpus": 8}}),
        ({"tokens": 1e9, "deadline_hours": 1.0, "objective": "cost"}, {}),
        ({"tokens": 1e9, "budget_dollars": 40.0}, {}),
    ],
)
def test_asking_for_what_is_offered_gives_as_good_a_plan(wanted: dict[str, Any], told: dict[str, Any]) -> None:
    """An offer is worth what it says under the same objective, limits, pins and rules."""
    job = shardwright.make_job(global_batch=64, seq_len=1024, **wanted)
    told = {"rules": [], "pins": {}} | told
    found = shardwright.plan("gpt2-medium", "2x8xH100-SXM", job, **told)
    if (offer := found.with_options) is None:
        return
    pins = told["pins"] | dict(pin.split("=") for pin in offer.pins)
    asked = shardwright.plan("gpt2-medium", "2x8xH100-SXM", job, **told | {"pins": pins})
    assert value(asked.best) <= value(offer.plan) * 1.0001
    assert value(offer.plan) == pytest.approx((1.0 - offer.saving) * value(found.best), rel=1e-4)


def test_gpus_of_several_types_are_offered_gradients_that_are_summed_last() -> None:
    """Another plan than the best without: the state in host memory makes room for whole gradients."""
    question = "llama-3.2-1b", "1x(2xA10G+1xRTX3090)", shardwright.make_job(global_batch=48, seq_len=2048)
    ranking = shardwright.plan(*question, framework="fsdp")
    offer = ranking.with_options
    assert offer is not None and offer.pins == ("gradient_sync=last",) and offer.saving > 0.05
    assert offer.plan.optimizer != ranking.best.optimizer
    asked = shardwright.plan(*question, framework="fsdp", pins={"gradient_sync": "last"})
    assert asked.best.iteration_seconds <= offer.plan.iteration_seconds * 1.0001
    assert "sync_each_batch" not in shardwright.export(offer.plan, "accelerate").files["training_arguments.json"]


def test_experts_are_offered_a_hidden_exchange_that_a_trainer_runs() -> None:
    ranking = shardwright.plan(MODEL, CLUSTER, replace(JOB, global_batch=256))
    offer = ranking.with_options
    assert offer is not None and "exchange_overlap=batches" in offer.pins
    assert offer.plan.iteration_seconds == pytest.approx((1.0 - offer.saving) * ranking.best.iteration_seconds)
    assert "--overlap-moe-expert-parallel-comm" in shardwright.export(offer.plan, "megatron").files["run.sh"]


SAID = [(name, word) for name, words in VALUES.items() if name != "recompute_modules" for word in words]
SAID += [("recompute_modules", (module,)) for module in ("moe", "mlp")]
AGAINST_OFFERS = [("dispatcher", "allgather"), ("recompute_modules", ("moe",)), ("cuda_graph", "none")]


@pytest.mark.parametrize(
    ("name", "word"), [*AGAINST_OFFERS, *nightly(pair for pair in SAID if pair not in AGAINST_OFFERS)]
)
def test_what_a_job_says_is_never_contradicted_by_what_is_offered(name: str, word: Any) -> None:
    """Where there is a plan with an option, the plan with offers beside it is one with the option."""
    options = replace(Options(), **{name: word})
    try:
        _plan(options=options)
    except SpecError:  # an option that Megatron-LM does not have, or not alone
        return
    found = shardwright.plan(MODEL, CLUSTER, replace(JOB, options=options), top=1)
    offered = [found.with_options.plan] if found.with_options else []
    assert all(getattr(each.job.options, name) == word for each in (*found.plans, *offered))


def test_flex_is_planned_where_experts_are_split() -> None:
    ranking = shardwright.plan(MODEL, CLUSTER, JOB, pins={"dispatcher": "flex"})
    assert ranking.no_trainer is None and ranking.best.stages[0].expert_parallel > 1
