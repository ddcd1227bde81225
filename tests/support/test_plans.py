"""No plan is printed that nobody runs, and what comes next is a command that works."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import answered, refused, run
from tests.nightly import nightly
from tests.support.following import next_command

import shardwright
from shardwright.errors import SpecError
from shardwright.exporters.targets import TRAINERS, limits_of
from shardwright.plans.findings import NoTrainer
from shardwright.reports.words import in_words
from shardwright.trainers.runs import frameworks_with_trainers, runners

EIGHT = "1x8xH100-SXM"
SMALL = ("--cluster", EIGHT, "--global-batch", "32", "--seq-len", "2048")


def planned(model: str, *more: str) -> Any:
    return answered(["plan", "--model", model, *SMALL, *more, "--json"])


def test_a_model_that_megatron_does_not_run_is_planned_for_who_does(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    done = run(["plan", "--model", "opt-350m", *SMALL, "--out", str(file)])
    assert done.code == 0 and "priced for megatron" not in done.out
    assert "megatron does not run this job of opt-350m" in done.err
    plan = shardwright.load_plan(file)
    assert runners(plan)
    step = " ".join(done.out[done.out.index("\n  next ") :].split())
    assert f"--to {runners(plan)[0]} " in step or "shardwright train" in step


@pytest.mark.parametrize("words", [["--framework", "megatron"], ["--framework=megatron"]])
def test_a_framework_that_does_not_run_a_model_is_compared_with_and_one_that_does_comes_next(words: list[str]) -> None:
    done = run(["plan", "--model", "gemma-2-2b", *words, *SMALL])
    assert done.code == 3
    first = " ".join(done.out.split("\n\n")[0].split())
    assert first.startswith("no trainer for megatron that we know runs family gemma2")
    assert "these would run it: fsdp, deepspeed" in first
    assert "priced for megatron" in done.out and "nobody that we know runs this plan" in " ".join(done.out.split())
    after = next_command(done.out)
    assert after == ["plan", "--model", "gemma-2-2b", "--framework", "any", *SMALL]
    answer = run(after)
    assert answer.code == 0 and next_command(answer.out)[0] in ("export", "train")
    document = run(["plan", "--model", "gemma-2-2b", *words, *SMALL, "--json"])
    assert document.code == 3 and json.loads(document.out)["no_trainer"]["able"] == ["fsdp", "deepspeed", "train"]


def test_of_several_frameworks_that_do_not_run_a_model_there_is_no_plan() -> None:
    done = run(["plan", "--model", "gemma-2-2b", *SMALL, "--framework", "megatron,torchtitan"])
    assert done.code == 3 and "No plan: no trainer for megatron or torchtitan" in " ".join(done.out.split())


@pytest.mark.parametrize("more", [[], ["--framework", "any"]])
@pytest.mark.parametrize("model", ["llama-3.2-1b", "bloom-560m"])
def test_what_no_framework_has_on_these_machines_is_no_fault_of_the_model(model: str, more: list[str]) -> None:
    words = refused(run(["plan", "--model", model, "--cluster", "1x8xV100-SXM2", *SMALL[2:], *more]))
    assert "V100-SXM2 cannot compute in bf16" in words


def test_a_target_that_does_not_run_the_model_ends_in_no_plan() -> None:
    done = run(["plan", "--model", "gemma-2-2b", *SMALL, "--exportable-to", "megatron"])
    assert done.code == 3 and "no trainer for megatron" in done.out
    shown = run(["plan", "--model", "gemma-2-2b", *SMALL, "--exportable-to", "megatron", "--json"])
    assert json.loads(shown.out)["infeasible"]["reason"]["kind"] == "no_trainer"


@pytest.mark.parametrize("framework", ["nanotron", *nightly(["jax", "eager"])])
def test_what_nothing_is_exported_to_is_for_evaluation_alone(framework: str) -> None:
    words = refused(run(["plan", "--model", "llama-3.2-1b", *SMALL, "--framework", framework]))
    assert "`evaluate` and `validate` alone" in words
    said = run(["support", "--framework", framework])
    assert said.code == 0 and "nothing is exported to it" in said.out


@pytest.mark.parametrize("target", ["bridge", "torchtitan", "accelerate", "deepspeed"])
def test_plans_for_a_target_are_those_that_it_runs(target: str) -> None:
    found = planned("llama-3.1-8b", "--exportable-to", target)
    plans = shardwright.load_model("llama-3.1-8b"), found["plans"]
    assert plans[1] and all(target in names for names in found["trainers"])


def test_several_frameworks_are_one_ranking() -> None:
    model, cluster = shardwright.load_model("llama-3.1-8b"), shardwright.load_cluster(EIGHT)
    job = shardwright.make_job(global_batch=32, seq_len=2048)
    together = shardwright.plan(model, cluster, job, frameworks=("torchtitan", "deepspeed"), top=1)
    alone = [shardwright.plan(model, cluster, job, frameworks=(name,), top=1) for name in ("torchtitan", "deepspeed")]
    seconds = [ranking.best.iteration_seconds for ranking in alone]
    assert together.best.iteration_seconds == min(seconds)
    every = shardwright.plan(model, cluster, job, frameworks=("any",), top=1)
    assert every.best.iteration_seconds <= min(seconds)
    assert every.trainers[0] == runners(every.best)


@pytest.mark.parametrize("framework", sorted(frameworks_with_trainers()))
@pytest.mark.parametrize("target", TRAINERS)
def test_a_framework_and_a_target_that_are_named_both_hold(framework: str, target: str) -> None:
    arguments = ["plan", "--model", "llama-3.2-1b", *SMALL, "--framework", framework, "--exportable-to", target]
    if target in frameworks_with_trainers()[framework]:
        assert answered([*arguments, "--json"])["plans"][0]["job"]["framework"] == framework
    else:
        words = refused(run(arguments))
        assert "--framework" in words and "--exportable-to" in words and framework in words


def test_the_best_plan_of_a_framework_is_no_slower_than_the_nearest_of_another_plan() -> None:
    """The search within what DeepSpeed runs, beside that of `export --nearest` from a plan of Megatron-LM."""
    model, cluster = shardwright.load_model("llama-2-13b"), shardwright.load_cluster(EIGHT)
    job = shardwright.make_job(global_batch=32, seq_len=2048)
    other = shardwright.plan(model, cluster, job).best
    nearest = shardwright.nearest_plan(other, "deepspeed")
    best = shardwright.plan(model, cluster, job, exportable_to="deepspeed").best
    assert nearest is not None
    assert best.iteration_seconds <= nearest.iteration_seconds
    limits = limits_of("deepspeed")
    assert limits is not None and not tuple(limits(best))


@pytest.mark.parametrize("to", ["skypilot", "kubernetes"])
def test_what_starts_machines_refuses_what_the_trainer_on_them_refuses(to: str) -> None:
    """Gemma by `shardwright train`: a paid cluster that ends at its start."""
    model, cluster = shardwright.load_model("gemma-2-2b"), shardwright.load_cluster(EIGHT)
    plan = shardwright.plan(model, cluster, shardwright.make_job(global_batch=32, seq_len=2048)).best
    peculiar = replace(plan, model=replace(plan.model, particular="a layer of its own", forward_pass=None))
    with pytest.raises(SpecError, match="particular"):
        shardwright.export(peculiar, to)


@pytest.mark.parametrize(("framework", "to", "says"), [("fsdp", "deepspeed", True), ("fsdp", "accelerate", False), ("megatron", "bridge", False), ("megatron", "kubernetes", False)])  # fmt: skip
def test_an_export_says_what_a_plan_takes_under_another_framework(
    framework: str, to: str, says: bool, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    run(["plan", "--model", "llama-3.2-1b", *SMALL, "--framework", framework, "--set", "sharding=zero1,zero3", "--out", str(file)])  # fmt: skip
    done = run(["export", str(file), "--to", to, "-o", str(tmp_path / "launch")])
    assert done.code == 0 and (f"priced for {framework}: by deepspeed an iteration takes" in done.err) == says, done


def test_check_says_who_runs_a_plan(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    run(["plan", "--model", "llama-3.2-1b", *SMALL, "--out", str(file)])
    assert run(["check", str(file)]).out == "the plan is legal; megatron and bridge run it\n"
    assert answered(["check", str(file), "--json"])["trainers"] == ["megatron", "bridge"]


def test_support_names_who_runs_a_model_and_what_others_lack() -> None:
    done = run(["support", "--model", "gemma-2-2b", "--json"])
    rows = {row["trainer"]: row for row in json.loads(done.out)["trainers"]}
    assert done.code == 0 and rows["accelerate"]["runs"] and not rows["megatron"]["runs"]
    assert any("norms" in words for words in rows["megatron"]["lacks"])
    nobody = run(["support", "--model", "gemma-2-2b", "--framework", "megatron"])
    assert nobody.code == 3


def test_a_model_that_no_trainer_runs_has_no_plan() -> None:
    model = replace(shardwright.load_model("llama-3.2-1b"), particular="a layer of its own")
    job = shardwright.make_job(global_batch=32, seq_len=2048, precision="fp8")
    ranking = shardwright.plan(model, shardwright.load_cluster(EIGHT), job)
    assert not ranking.plans and ranking.infeasible is not None
    reason = ranking.infeasible.reason
    assert isinstance(reason, NoTrainer) and reason.able == ()
    assert {name for name, _ in reason.lacks} == {
        "megatron",
        "bridge",
        "torchtitan",
        "accelerate",
        "deepspeed",
        "train",
    }


@pytest.mark.parametrize(
    ("name", "asked", "as_program"),
    [
        ("llama-3.2-1b", {"optimizer": "muon"}, True),
        ("llama-3.2-1b", {"optimizer": "muon", "precision": "fp32"}, True),
        ("llama-3.2-1b", {"optimizer": "muon", "precision": "fp16"}, False),
        ("llama-3.2-1b", {"precision": "fp8"}, False),
        ("llama-3.2-1b", {"optimizer": "muon", "adapter": "lora:8"}, False),
        ("qwen2.5-vl-3b", {"optimizer": "muon"}, False),
    ],
)
def test_spmd_is_named_only_where_it_has_a_program(name: str, asked: dict[str, str], as_program: bool) -> None:
    """The matrix has bf16 and fp32 of it, and its programs train all weights."""
    model = replace(shardwright.load_model(name), particular="a layer of its own")
    job = shardwright.make_job(global_batch=32, seq_len=2048, **asked)
    ranking = shardwright.plan(model, shardwright.load_cluster(EIGHT), job)
    assert ranking.infeasible is not None and isinstance(ranking.infeasible.reason, NoTrainer)
    assert ("`shardwright spmd` can" in in_words(ranking.infeasible.reason)) == as_program
    spmd = run(["support", "--model", name]).out.splitlines()[-1]
    assert spmd.startswith("  spmd") and spmd.endswith("runs it") == (name == "llama-3.2-1b")
