"""What `evaluate`, `shop` and the page compare with and propose, somebody runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.running import run
from tests.support.cells import FRAMEWORKS

import shardwright
from shardwright import Job, Plan, SpecError
from shardwright.cost.strategies import SHARDING, stage_row, strategies
from shardwright.plans.findings import NoTrainer
from shardwright.search.space.axes import parse_pins, within
from shardwright.serving.what_if.steps import steps
from shardwright.spec.offers import Offers
from shardwright.spec.options import VALUES
from shardwright.spec.read.offers import build_offers
from shardwright.trainers.runs import runners

JOB = {"global_batch": 64, "seq_len": 1024}
CLUSTER = shardwright.load_cluster("1x8xA100-SXM-80")


def planned(model: str, framework: str) -> Plan:
    ranking = shardwright.plan(
        shardwright.load_model(model), CLUSTER, shardwright.make_job(**JOB), frameworks=(framework,), top=1
    )
    return ranking.best


@pytest.mark.parametrize("framework", ["fsdp", "torchtitan", "deepspeed", "train", "megatron"])
def test_the_best_beside_a_plan_is_run_by_its_framework(framework: str) -> None:
    best = shardwright.evaluate(planned("llama-3.2-1b", framework)).best
    assert best.no_trainer is None and best.best.job.framework == framework
    assert runners(best.best) == best.trainers[0] != ()


def test_a_plan_that_nobody_runs_is_told_so() -> None:
    """Megatron-LM has no argument for a projected embedding and ReLU."""
    nobody = shardwright.evaluate(planned("opt-350m", "megatron")).best.no_trainer
    assert nobody is not None and nobody.frameworks == ("megatron",) and "fsdp" in nobody.able


@pytest.mark.parametrize(("model", "framework"), [("opt-350m", "fsdp"), ("llama-3.2-1b", "megatron")])
def test_every_choice_of_what_to_rent_is_run(model: str, framework: str) -> None:
    found = shardwright.shop(shardwright.load_model(model), offers(), job())
    assert {choice.plan.job.framework for choice in found.front} == {framework}
    assert all(runners(choice.plan) for choice in found.front)


def test_nobody_runs_what_is_asked_for() -> None:
    """nanotron, which nothing is exported to, is compared with and nothing more; Megatron-LM does not run this model."""
    model = shardwright.load_model("opt-350m")
    found = shardwright.shop(model, offers(), job(framework="torchtitan"))
    assert not found.front and found.infeasible is not None
    assert isinstance(found.infeasible.reason, NoTrainer) and "fsdp" in found.infeasible.reason.able


def test_the_page_shows_no_plan_that_nobody_runs() -> None:
    request = {"model": "opt-350m", "cluster": "1x8xA100-SXM-80", **JOB}
    answers = list(steps(request))
    assert "first" not in [answer["step"] for answer in answers]
    assert answers[-2]["step"] == "best"


def offers() -> Offers:
    return build_offers({"offers": [{"gpu": "A100-SXM-80", "gpus": 8, "at_most": 2, "price_per_hour": 20.0}]}, "here")


def job(framework: str = "megatron") -> Job:
    return shardwright.make_job(**JOB, tokens="1B", framework=framework)


@pytest.mark.parametrize("framework", ["fsdp", "deepspeed", "torchtitan", "train"])
@pytest.mark.parametrize("pin", ["pp=2", "sharding=zero1", "recompute=block", "offload=0.5", "overlap_tp=on", "vpp=2"])
def test_rules_that_are_said_to_leave_no_plan_dropped_some(framework: str, pin: str) -> None:
    """Of a framework's rules, of which there are a dozen and more, no other is named."""
    arguments = ["plan", "--model", "llama-3.1-8b", "--cluster", "1x8xH100-SXM", "--global-batch", "64"]
    answer = json.loads(run([*arguments, "--seq-len", "4096", "--framework", framework, "--set", pin, "--json"]).out)
    reason = (answer.get("infeasible") or {}).get("reason", {})
    if reason.get("kind") == "rules_drop_all":
        dropping = {item["rule"] for item in answer["search"]["rejected"] if item["kind"] == "rule"}
        assert reason["rules"] and dropping.issuperset(reason["rules"])
        advised = [remedy["kind"] for remedy in answer["infeasible"]["remedies"]]
        assert "relaxed_rules" not in advised  # nobody gave any


def test_rules_are_to_be_relaxed_where_a_user_gave_some(tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text("nothing: $tp > 0\n")
    question = ["plan", "--model", "qwen3-4b", "--cluster", "1x2xRTX4090", "--global-batch", "2"]
    question += ["--seq-len", "12288", "--framework", "deepspeed", "--set", "weight_offload=host", "--json"]
    plain, ruled = (json.loads(run([*question, *more]).out)["infeasible"] for more in ([], ["--rules", str(tmp_path / "rules.txt")]))  # fmt: skip
    assert [answer["reason"]["kind"] for answer in (plain, ruled)] == ["rules_drop_all"] * 2, (plain, ruled)
    assert not plain["remedies"] and [remedy["kind"] for remedy in ruled["remedies"]] == ["relaxed_rules"]


def settings() -> dict[str, tuple[str, ...]]:
    """Return values of axes that a user pins, and one of every option of a trainer, by name."""
    axes = {"tp": ("2",), "pp": ("2",), "cp": ("2",), "vpp": ("2",), "micro_batch": ("2",), "offload": ("0.5", "1")}
    words = {"sharding": SHARDING, "recompute": ("none", "selective", "uniform", "block")}
    return axes | words | {name: values[-1:] for name, values in VALUES.items() if name != "recompute_modules"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_pinned_is_in_every_plan_or_refused(framework: str) -> None:
    """A trainer that lacks it is no reason to leave it out: `loss=chunked` was lost where an export did not write it."""
    two, kept = shardwright.load_cluster("1x2xA100-SXM-80"), 0
    for setting in (f"{name}={value}" for name, values in settings().items() for value in values):
        space = parse_pins([setting])
        try:
            ranking = shardwright.plan(
                shardwright.load_model("llama-3.2-1b"), two, job(), frameworks=(framework,), space=space, top=3
            )
        except SpecError:  # names what the framework has not
            continue
        kept += len(ranking.plans) > 0
        for plan in ranking.plans:
            rows = strategies(
                [stage_row(plan, replica, stage) for replica in plan.replicas for stage in replica.stages]
            )
            assert within(replace(space, options={}), rows).all(), (setting, plan)
            options = {name: (getattr(plan.job.options, name),) for name in space.options}
            assert options == dict(space.options), setting
    assert kept >= 10
