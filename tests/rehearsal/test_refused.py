"""What a rehearsal refuses, and which ranks it plays; none of it runs a trainer."""

from __future__ import annotations

import stat
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tests.cli.running import run
from tests.rehearsal.tiny import tiny_plan
from tests.runtime.test_model_fields import COMPUTED, REFUSED

from shardwright.errors import SpecError
from shardwright.plans.document import save
from shardwright.plans.plan import Plan
from shardwright.rehearsal.inside.guard import build_of
from shardwright.rehearsal.rehearse import NoRoomError, asked, ranks_of
from shardwright.rehearsal.trainers import TRAINERS, configuration, question_of, trainer_of
from shardwright.spec.adapter import parse_adapter
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.options import Options


@pytest.fixture(scope="module")
def plan() -> Plan:
    return tiny_plan("train", "tp=2 pp=4 vpp=1 micro_batch=1 recompute=none")


def interpreter(folder: Path, text: str) -> str:
    """Return the path of a program that is run in place of Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_first_middle_and_last_stage_stand_for_all(plan: Plan) -> None:
    places = ranks_of(plan)
    assert [place.stage for place in places] == [0, 1, 3]
    assert {(place.copy, place.tensor_rank) for place in places} == {(0, 0)}
    (replica,) = plan.replicas
    shorter = replace(replica.stages[1], layers=((0, 0),))
    unequal = replace(plan, replicas=(replace(replica, stages=(replica.stages[0], shorter, *replica.stages[2:])),))
    assert [place.stage for place in ranks_of(unequal)] == [0, 2, 3]


def test_ranks_asked_for_are_played_once(plan: Plan) -> None:
    assert [place.rank for place in ranks_of(plan, (5, 2, 5))] == [5, 2]
    with pytest.raises(SpecError, match="ranks 0 to 7"):
        ranks_of(plan, (8,))


def test_a_rank_runs_on_a_gpu_only_where_there_is_one(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    question = question_of(plan, "train", ranks_of(plan)[0]) | {"on_gpu": True}
    with pytest.raises(SpecError, match="GPU: PyTorch finds none on this machine"):
        asked(question, python=None, seconds=300.0, limit_bytes=8e9)


@pytest.mark.parametrize("name", ["deepspeed", "nothing"])
def test_other_trainers_are_refused_by_name(plan: Plan, name: str) -> None:
    with pytest.raises(SpecError, match=f"`trainer={name}`"):
        trainer_of(plan, name)


def test_fsdp_refuses_a_pipeline(plan: Plan) -> None:
    with pytest.raises(SpecError, match="pipeline"):
        trainer_of(plan, "fsdp")


def test_without_pytorch_it_says_what_to_install(plan: Plan, tmp_path: Path) -> None:
    save(plan, tmp_path / "plan.json")
    python = interpreter(tmp_path, f'exec "{sys.executable}" -I -S "$@"')
    outcome = run(["rehearse", str(tmp_path / "plan.json"), "--rank", "0", "--python", python])
    assert outcome.code == 2
    assert "pip install 'torch==2.13.*'" in outcome.err


def test_without_a_compiler_it_says_what_to_install(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save(plan, tmp_path / "plan.json")
    outcome = run(["rehearse", str(tmp_path / "plan.json"), "--rank", "0"])
    assert outcome.code == 2
    assert "no-such-compiler" in outcome.err
    assert "g++" in outcome.err


def test_a_rank_that_takes_too_long_is_ended(plan: Plan, tmp_path: Path) -> None:
    python = interpreter(tmp_path, "exec sleep 60")
    question = question_of(plan, "train", ranks_of(plan)[0])
    with pytest.raises(NoRoomError, match="`time_limit="):
        asked(question, python=python, seconds=0.2, limit_bytes=1e9)


def test_a_process_that_dies_is_told(plan: Plan, tmp_path: Path) -> None:
    python = interpreter(tmp_path, "echo broken >&2; exit 7")
    question = question_of(plan, "train", ranks_of(plan)[0])
    with pytest.raises(SpecError, match="status 7 and no answer: broken"):
        asked(question, python=python, seconds=10.0, limit_bytes=1e9)


def test_too_little_memory_is_exit_three(plan: Plan, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    save(plan, tmp_path / "plan.json")
    outcome = run(["rehearse", str(tmp_path / "plan.json"), "--rank", "0", "--memory-limit", "0.02"])
    assert outcome.code == 3
    assert "--memory-limit" in outcome.err


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", ("2.13.0+cpu", None)),
        ("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n", ("2.13.0+cu130", "13.0")),
    ],
)
def test_builds_of_pytorch_are_told_apart(text: str, build: tuple[str, str | None]) -> None:
    assert build_of(text) == build


@pytest.fixture(scope="module")
def sharded() -> Plan:
    return tiny_plan("fsdp", "sharding=zero3 micro_batch=1 recompute=none")


CHANGED = {
    "precision": "fp8",
    "fp8_recipe": "tensor",
    "optimizer": "muon",
    "optimizer_rank": 64,
    "fp8_storage": True,
    "fused_loss": True,
    "document_tokens": 100.0,
    "options": Options(loss="chunked"),
    "adapter": parse_adapter("lora8bit:8"),
    "images_per_sequence": 2,
    "image_size": (448, 448),
    "sounds_per_sequence": 2,
    "sound_seconds": 10.0,
    "freeze": ("vision",),
    "encoder_seq_len": 512,
}
ALL_THE_SAME = ("global_batch", "seq_len", "tokens", "objective", "framework", "budget_dollars", "deadline_hours")
REHEARSED = ("preference",)  # whatever it is


@pytest.mark.parametrize("name", CHANGED)
def test_fsdp_refuses_what_of_a_job_its_process_is_not_told(sharded: Plan, name: str) -> None:
    """Else another step is rehearsed than the plan's, and "the plan fits" said of it."""
    other = replace(sharded, job=replace(sharded.job, **{name: CHANGED[name]}))
    assert tuple(TRAINERS["fsdp"].limits(sharded)) == () and tuple(TRAINERS["fsdp"].limits(other))


def test_every_field_of_a_job_is_told_refused_or_changes_no_step() -> None:
    assert {*CHANGED, *ALL_THE_SAME, *REHEARSED} == {field.name for field in fields(Job)}


def test_fsdp_is_told_of_adapters(sharded: Plan) -> None:
    adapted = replace(sharded, job=replace(sharded.job, adapter=parse_adapter("dora:8")))
    asked_of = question_of(adapted, "fsdp", ranks_of(adapted)[0])["adapter"]
    assert (asked_of["r"], asked_of["use_dora"]) == (8, True) and not tuple(TRAINERS["fsdp"].limits(adapted))


def test_fsdp_is_told_of_few_bits(sharded: Plan) -> None:
    jobs = [replace(sharded.job, adapter=parse_adapter("qlora:8")), replace(sharded.job, optimizer="adam8bit")]
    plans = [replace(sharded, job=job) for job in jobs]
    frozen, state = (question_of(plan, "fsdp", ranks_of(plan)[0]) for plan in plans)
    assert frozen["quantisation"]["bnb_4bit_quant_storage"] == "bfloat16" and not state["quantisation"]
    assert (frozen["optimizer"], state["optimizer"]) == ("adam", "adam8bit")
    assert not any(tuple(TRAINERS["fsdp"].limits(plan)) for plan in plans)


def test_fsdp_is_told_when_gradients_are_summed(sharded: Plan) -> None:
    kept = replace(sharded, job=replace(sharded.job, options=Options(gradient_sync="last")))
    asked_of = [question_of(plan, "fsdp", ranks_of(plan)[0])["whole_until_last"] for plan in (sharded, kept)]
    assert asked_of == [False, True] and not tuple(TRAINERS["fsdp"].limits(kept))


@pytest.mark.parametrize(
    "name", [field.name for field in fields(Options) if field.name not in ("gradient_sync", "master_weights")]
)
def test_fsdp_is_not_told_of_options(sharded: Plan, name: str) -> None:
    options = replace(sharded.job.options, **{name: "anything"})
    assert tuple(TRAINERS["fsdp"].limits(replace(sharded, job=replace(sharded.job, options=options))))


# What a rehearsal's model has of another value, with the same tensors: constants, scales, and how positions turn.
SAME_TENSORS = {
    "Model.norm_about_one", "Model.rotary_interleaved", "Model.forward_pass", "Model.rotary_base", "Model.norm_epsilon",
    "Model.rotary_scaling", "Model.guesses",
    *(f"ForwardPass.{kind}_scale" for kind in ("embedding", "residual", "logit", "score")),
}  # fmt: skip
BY_THE_LOSS = {
    "Model.scores"
}  # which a rehearsal is told, and without which no plan has them (`plans.trainer_options`)


@pytest.mark.parametrize("name", [*COMPUTED, *REFUSED])
def test_another_model_has_another_configuration_or_none(name: str) -> None:
    change, model = COMPUTED.get(name) or REFUSED[name]
    before, after = map(configured, (model, change(model)))
    same = isinstance(after, dict) and before == after
    assert not same or name in SAME_TENSORS | BY_THE_LOSS or name.startswith("RotaryScaling.")


def configured(model: Model) -> object:
    try:
        return configuration(model)
    except SpecError as error:
        return str(error)
