"""SPMD programs beside plans: priced by the same cost model, refused with a reason, shown beside the best plan."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import pytest

import shardwright
from shardwright.cost.context import Context
from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.plans.ranking import NoProgram, Ranking, SpmdProgram
from shardwright.reports.text.programs import UNASKED, program_text, program_words
from shardwright.search.mixed.entry import run_by_train
from shardwright.search.planner import with_program
from shardwright.search.programs import best_program
from shardwright.search.space.axes import parse_pins
from shardwright.search.uneven.search import uneven_fsdp
from shardwright.spec.adapter import Adapter
from shardwright.spec.job import Job
from shardwright.spec.preference import LOSSES, Preference
from shardwright.synthesis.baselines import fsdp

BOX = "1x1x4090 + 1x1x3090"


def job(batch: int, **fields: object) -> Job:
    return shardwright.make_job(global_batch=batch, seq_len=1024, **fields)  # type: ignore[arg-type]


@cache
def ranking() -> Ranking:
    model, cluster = shardwright.load_model("gpt2"), shardwright.load_cluster(BOX)
    return with_program(shardwright.plan(model, cluster, job(16)))


def test_a_program_is_found_beside_the_plans() -> None:
    found = ranking().program
    assert isinstance(found, SpmdProgram)
    assert 0 < found.bound_seconds <= found.iteration_seconds
    assert [(one.gpu, one.count) for one in found.shares] == [("RTX4090", 1), ("RTX3090", 1)]
    for name in ("rows", "features", "state"):
        assert sum(one.count * getattr(one, name) for one in found.shares) == pytest.approx(1.0)
    assert found.memory_bytes < 24e9 and found.sent


def test_more_rows_than_fit_go_in_several_steps() -> None:
    model, cluster = shardwright.load_model("gpt2"), shardwright.load_cluster("1x2x3090")
    few, many = (best_program(model, cluster, job(rows)) for rows in (8, 256))
    assert isinstance(few, SpmdProgram) and isinstance(many, SpmdProgram)
    assert few.steps == 1 < many.steps and 256 % many.steps == 0
    # Two equal GPUs with rows enough compute like the plan's data parallelism, which is priced apart.
    plan = shardwright.plan(model, cluster, job(256, framework="train")).best.predicted
    assert many.iteration_seconds == pytest.approx(plan.iteration_seconds, rel=0.1)


def test_experts_are_priced_as_in_plans() -> None:
    model, cluster = shardwright.load_model("qwen1.5-moe-a2.7b"), shardwright.load_cluster("1x8xA100-SXM-80")
    job = shardwright.make_job(global_batch=32, seq_len=2048, framework="train")
    found, plan = best_program(model, cluster, job), shardwright.plan(model, cluster, job).best.predicted
    assert isinstance(found, SpmdProgram)
    assert found.iteration_seconds == pytest.approx(plan.iteration_seconds, rel=0.1)


def test_uneven_fsdp_as_a_program_is_the_strategy() -> None:
    """Rows and state of the linear program are those of the search for shares; the time differs by the latencies of
    small messages alone, where gradients are reduced in the type of their parameters."""
    model, cluster = shardwright.load_model("gpt2"), shardwright.load_cluster("1x2xH100-SXM + 1x2xA100-SXM-80")
    whole = job(64, precision="fp32")
    program = best_program(model, cluster, whole, rules=fsdp)
    contexts = [Context(model=model, pool=pool, job=whole, efficiency=default_efficiency()) for pool in cluster.pools]
    space = parse_pins(["recompute=none"])
    plan = uneven_fsdp(run_by_train(contexts, 0.9), cluster, space, lambda plan: True).plans[0]
    assert isinstance(program, SpmdProgram) and program.steps == 1
    assert program.iteration_seconds == pytest.approx(predict(plan, default_efficiency()).iteration_seconds, rel=0.03)
    for share, replica in zip(program.shares, plan.replicas, strict=True):
        assert share.gpu == replica.stages[0].gpu and replica.rows is not None and replica.state is not None
        assert 64 * share.rows == pytest.approx(replica.rows, abs=1.0)
        assert share.state == pytest.approx(replica.state / (plan.optimizer.parts or 1))


@pytest.mark.parametrize(
    ("model", "cluster", "fields", "reason"),
    [
        ("deepseek-v2-lite", BOX, {}, "has layers of several kinds, which no graph that ships has"),
        ("gpt2", "4x8xH100-SXM", {}, "2 to 16 GPUs"),
        ("gpt2", "1x8xH100-SXM", {"precision": "fp8"}, "fp32, bf16 or fp16"),
        ("llama-2-13b", BOX, {}, "fits the memory"),
    ],
)
def test_where_there_is_no_program_it_says_why(
    model: str, cluster: str, fields: dict[str, object], reason: str
) -> None:
    found = best_program(shardwright.load_model(model), shardwright.load_cluster(cluster), job(16, **fields))
    assert isinstance(found, NoProgram) and reason in found.reason


# Fields of a job that change a step, with what no graph has of them.
REFUSED: dict[str, dict[str, object]] = {
    "fp8_recipe": {"precision": "fp8", "fp8_recipe": "delayed"},
    "fp8_storage": {"precision": "fp8", "fp8_storage": True},
    "optimizer_rank": {"optimizer": "galore", "optimizer_rank": 64},
    "document_tokens": {"document_tokens": 128.0},
    "adapter": {"adapter": Adapter()},
    **{f"preference {loss}": {"preference": Preference(loss=loss)} for loss in LOSSES},
}
# Those that programs have too, that change no step, or kernels alone; and those of towers, which no graph has.
KNOWN = {"global_batch", "seq_len", "precision", "optimizer", "options", "framework"}
NO_STEP = {"tokens", "objective", "budget_dollars", "deadline_hours", "fused_loss"}
OF_TOWERS = {"images_per_sequence", "image_size", "sounds_per_sequence", "sound_seconds", "freeze", "encoder_seq_len"}


@pytest.mark.parametrize("name", REFUSED)
def test_no_program_is_held_against_plans_of_another_step(name: str) -> None:
    asked = replace(job(16), **REFUSED[name])
    assert isinstance(best_program(shardwright.load_model("gpt2"), shardwright.load_cluster(BOX), asked), NoProgram)


def test_every_field_of_a_job_is_known_to_programs_or_refused() -> None:
    refused = {name.split(" ")[0] for name in REFUSED}
    assert refused | KNOWN | NO_STEP | OF_TOWERS == {field.name for field in fields(Job)}


def test_words_say_who_wins_and_by_how_much() -> None:
    answer = ranking()
    program, prediction = answer.program, answer.best.predicted
    assert isinstance(program, SpmdProgram)
    faster = replace(program, iteration_seconds=0.8 * prediction.iteration_seconds, steps=4)
    words = program_words(replace(answer, program=faster))
    assert "20% less than the plan" in words and "batches of 4 rows" in words and "--accumulate 4" in words
    slower = replace(program, iteration_seconds=1.5 * prediction.iteration_seconds)
    assert "50% more than the plan" in program_words(replace(answer, program=slower))
    assert "as long as" in program_words(
        replace(answer, program=replace(program, iteration_seconds=prediction.iteration_seconds))
    )
    text = program_text(answer, 100)
    assert "1 × RTX4090" in text and "of the state" in text
    assert program_text(replace(answer, program=None), 100) == UNASKED
    assert program_words(replace(answer, program=NoProgram("so"))) == "no SPMD program: so"
