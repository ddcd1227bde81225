"""The matrix of who runs what: whole, sourced, and what trainers and exporters do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
from tests.golden.plans import LLAMA_3_1_8B, MIXTRAL_8X7B, uniform_plan
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright.exporters.megatron.limits import CONDITIONS
from shardwright.exporters.support.matrix import facts, limits_in_rules, trainers
from shardwright.exporters.support.refusals import job_values, refusals
from shardwright.exporters.support.traits import traits
from shardwright.exporters.targets import TARGETS, TRAINERS, limits_of
from shardwright.plans.plan import Overlap, Plan, Recompute
from shardwright.plans.trainable import own_problems
from shardwright.search.rules.rules import check_rules
from shardwright.spec.adapter import Adapter
from shardwright.spec.job import Job, Optimizer
from shardwright.spec.options import VALUES
from shardwright.spec.read.presets import preset_model, preset_names
from shardwright.trainers.runs import family_answers

JOB = Job(global_batch=64, seq_len=4096)


def llama(**told: Any) -> Plan:
    """A plan of Llama-3.1-8B on 16 H100s that every trainer runs but for what is told."""
    job = told.pop("job", JOB)
    usual = {"nodes": 2, "micro_batch": 1, "tp": 1, "counts": (32,), "sharding": "zero3"}
    return uniform_plan(LLAMA_3_1_8B, job=job, **(usual | told))


def test_every_fact_stands_once_and_has_a_source() -> None:
    counts = Counter((row.target, row.subject, row.value) for row in facts())
    assert [place for place, count in counts.items() if count > 1] == []
    assert [row for row in facts() if not row.source] == []
    assert {row.target for row in facts()} == set(trainers())
    assert {row.runs for row in facts()} == {"yes", "no", "limit"}


def test_what_a_trainer_limits_is_said_in_words() -> None:
    silent = [
        row
        for row in facts()
        if row.runs != "yes" and not row.message and row.subject not in ("layer", "unequal split")
    ]
    assert silent == []


def test_every_trainer_that_is_exported_to_has_its_facts() -> None:
    assert set(trainers()) == {*TRAINERS, "train", "spmd"}
    assert {name: trainers()[name].framework for name in TRAINERS} == {
        name: TARGETS[name].framework for name in TRAINERS
    }


def test_rules_are_rules() -> None:
    for name, model in product(trainers(), (LLAMA_3_1_8B, MIXTRAL_8X7B)):
        check_rules([rule for _, rule in limits_in_rules(name, model)])


def test_conditions_in_code_are_those_of_the_matrix() -> None:
    assert {row.value for row in facts("megatron") if row.subject == "condition"} == set(CONDITIONS)


def test_every_trait_of_a_preset_has_a_fact_of_every_exporter() -> None:
    there = {trait.name for name in preset_names() for trait in traits(preset_model(name))}
    known = {name: {row.value for row in facts(name) if row.subject == "layer"} for name in TRAINERS}
    assert {name: there - values for name, values in known.items()} == {name: set() for name in TRAINERS}


def test_every_value_of_a_job_has_a_fact_of_every_exporter() -> None:
    for name in TRAINERS:
        known = {(row.subject, row.value) for row in facts(name)}
        wanted = {("precision", word) for word in ("bf16", "fp16", "fp32", "fp8")}
        wanted |= {("optimizer", word) for word in get_args(Optimizer)}
        wanted |= {("option", word) for word in VALUES}
        assert wanted <= known, name


@pytest.mark.parametrize("name", TRAINERS)
def test_exporters_refuse_what_the_matrix_says_no_to(name: str) -> None:
    """Each value of a job by itself, beside what the exporter's own limits say of the plan that asks it."""
    jobs = [replace(JOB, precision=word) for word in ("bf16", "fp16", "fp32")]
    jobs += [replace(JOB, optimizer=word) for word in get_args(Optimizer)]
    jobs += [replace(JOB, adapter=Adapter()), replace(JOB, document_tokens=512.0), replace(JOB, fused_loss=True)]
    limits = limits_of(name)
    assert limits is not None
    model = "gpt2-xl" if name != "torchtitan" else "llama-3.1-8b"
    for job in jobs:
        plan = llama(job=job)
        plan = replace(plan, flash_attention=job.precision in ("bf16", "fp16"))
        if job.projection_rank is not None:  # of whole matrices
            plan = replace(plan, optimizer=replace(plan.optimizer, sharding="none"))
        no = {row.value for row in facts(name) if row.runs == "no"}
        asked = {value for _, value, _ in job_values(plan)}
        assert bool(tuple(limits(plan))) == bool(no & asked), (model, job)


# A strategy, the trainers that do not run it, and a word of what they say.
STRATEGIES: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "sharded": ({}, set(), ""),
    "zero1": ({"sharding": "zero1"}, {"torchtitan", "accelerate"}, ""),
    "pipeline": ({"pp": 4, "counts": (8, 8, 8, 8), "sharding": "none"}, {"accelerate", "deepspeed"}, "no pipeline"),
    "tensor": ({"tp": 4, "sequence_parallel": False}, {"deepspeed"}, "autotp"),
    "context": ({"cp": 4}, {"deepspeed"}, "none"),
    "selective": ({"recompute": Recompute(granularity="selective")}, {"accelerate", "deepspeed"}, "recomputes"),
    "pairs of layers": (
        {"recompute": Recompute(granularity="full", method="uniform", layers=2)},
        {"torchtitan", "accelerate", "deepspeed"},
        "",
    ),
    "some layers": (
        {"recompute": Recompute(granularity="full", method="block", layers=3)},
        {"torchtitan", "accelerate", "deepspeed"},
        "",
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_exporters_refuse_strategies_by_the_rules_that_the_search_is_given(name: str) -> None:
    told, refuse, words = STRATEGIES[name]
    told = dict(told)
    sequence = told.pop("sequence_parallel", None)
    plan = llama(**told)
    plan = plan if sequence is None else replace(plan, sequence_parallel=sequence)
    said = {
        target: [problem.message for problem in refusals(plan, target)]
        for target in ("torchtitan", "accelerate", "deepspeed")
    }
    assert {target for target, messages in said.items() if messages} == refuse, said
    assert all(words in " ".join(messages).casefold() for messages in said.values() if messages)


# A model of torchtitan's registry, what differs of a plan that it runs, and a word of what it says.
OF_TORCHTITAN: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("qwen3-30b-a3b", {"ep": 8}, ""),
    ("qwen3-30b-a3b", {"ep": 8, "sharding": "none"}, "ranks that shard the weights"),
    ("qwen3-30b-a3b", {"ep": 2, "tp": 2, "sharding": "none"}, ""),
    ("qwen3-8b", {"tp": 8}, ""),
    ("qwen3-8b", {"tp": 16}, "whole key-value heads"),
    ("llama-3.2-1b", {"pp": 2, "counts": (8, 8), "sharding": "none"}, "ties weights within one stage"),
    ("llama-3.1-8b", {"pp": 2, "counts": (16, 16), "sharding": "none"}, ""),
    ("qwen3-30b-a3b", {"job": replace(JOB, seq_len=40960)}, ""),
    ("qwen3-30b-a3b", {"job": replace(JOB, seq_len=65536)}, "longer than the 40960 positions of qwen3 30B-A3B"),
)


@pytest.mark.parametrize(("model", "told", "words"), OF_TORCHTITAN)
def test_torchtitan_refuses_what_its_own_checks_would(model: str, told: dict[str, Any], words: str) -> None:
    loaded = preset_model(model)
    plan = llama(**({"counts": (len(loaded.layers),)} | told))
    plan = replace(plan, model=loaded)
    said = " ".join(problem.message for problem in limits_of("torchtitan")(plan))  # type: ignore[misc]
    assert words in said if words else not said


def test_the_rows_of_train_are_what_it_does_not_run() -> None:
    """`check` refuses plans for `train` by `plans.trainable`; the matrix says the same of every such plan."""
    experts = tiny_model(4, experts=4)
    for tp, etp, flash, overlap, sequence in product((1, 2), (1, 2), (True, False), (True, False), (True, False)):
        plan = plan_of(experts, replica(replace(stage((0, 4), tp=tp), expert_tensor_parallel=etp), micro_batches=2))
        plan = replace(
            plan,
            job=replace(plan.job, framework="train"),
            flash_attention=flash,
            overlap=Overlap(tensor_parallel=overlap and tp > 1),
            sequence_parallel=sequence and tp > 1,
        )
        theirs = {problem.path.split(".")[-1] for problem in own_problems(plan)}
        ours = {problem.path.split(".")[-1] for problem in refusals(plan, "train")}
        assert ours == theirs, (tp, etp, flash, overlap, sequence)


def test_families_are_asked_of_the_trainers_themselves() -> None:
    answers = {
        (row.family, row.target): row for row in family_answers(map(preset_model, ("llama-3.1-8b", "gemma-2-9b")))
    }
    assert answers["llama", "train"].runs == answers["llama", "megatron"].runs == "yes"
    assert answers["gemma2", "megatron"].runs == "no" and "norms" in answers["gemma2", "megatron"].words
    assert answers["gemma2", "accelerate"].runs == "yes"
