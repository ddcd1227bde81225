"""A tool answers what its command prints, refuses in its words, and takes no value of another kind for another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.running import run, succeeded

from shardwright.cli.tools import SHOWN, answer, parameters
from shardwright.serving.answers import Answer
from shardwright.serving.worker import answer_within

LAUNCH = "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --global-batch-size 64 --bf16 "
LAUNCH += "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 "
LAUNCH += "--vocab-size 50304 --micro-batch-size 4\n"
LINES = "iteration {0}/ 100 | consumed samples: {1} | elapsed time per iteration (ms): 900.0 | global batch size: 64 | lm loss: 2.0\n"
NODES = "NodeName=gpu01 CPUTot=64 RealMemory=1000000 Gres=gpu:h100:8 State=IDLE\n\nNodeName=gpu02 Gres=gpu:h100:8 State=DRAIN\n"
WHERE = {"launch": "run.sh", "cluster": "1x8xA100-SXM-80"}
PLAN = {"model": "gpt2", "cluster": "1x2xA100-SXM-40", "global_batch": 8, "seq_len": 512}
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("plan", PLAN),
    ("plan", {**PLAN, "set": ["tp=2", "recompute=none"], "top": 5, "tokens": "1B", "objective": "cost"}),
    ("plan", {**PLAN, "framework": "fsdp", "adapter": "lora:8"}),
    ("plan", {**PLAN, "tp_per_type": True}),
    ("plan", {**PLAN, "master_weights": "none"}),  # a note says for which framework
    ("plan", {**PLAN, "model": "llama-3.1-405b"}),  # fits nowhere
    ("plan", {**PLAN, "fit": 2}),
    ("plan", {**PLAN, "preference": "grpo"}),
    ("plan", {**PLAN, "rules": "rules.txt"}),
    ("plan", {**PLAN, "calibration": "missing.json"}),
    ("shop", {"model": "gpt2", "tokens": "1B", "gpu": "T4", "max_gpus": 8, "precision": "fp16"}),
    ("fit", {"model": "llama-3.1-8b", "gpu": "RTX3090", "gpus": 2}),
    ("fit", {"model": "llama-3.1-8b", "cluster": "1x1xRTX3090", "gpus": 2}),
    ("evaluate", {"words": ["plan.json"], "measured": 3.1}),
    ("evaluate", WHERE),
    ("evaluate", {**WHERE, "env": ["A=1"]}),
    ("diagnose", {"plan": "plan.json", "measured": "20s", "best": False}),
    ("diagnose", {"sources": ["train.log"], **WHERE, "best": False}),
    *(("export", {"plan": "plan.json", "to": to, "nearest": True}) for to in ("megatron", "torchtitan", "deepspeed", "nope")),
    ("export", {"plan": "plan.json", "to": "skypilot", "launcher": "slurm"}),
    ("check", {"plan": "plan.json"}),
    ("check", {"plan": "missing.json"}),
    ("validate", {"row": ["7393f612b3"]}),
    ("discover", {"from_file": ["nodes.txt"]}),
    ("calibrate", {"runs": ["train.log"], "plan": ["plan.json"], "cluster": "1x8xT4", "out": "site.json"}),
    ("simulate-spot", {"plan": "plan.json", "market": "calm", "days": 0.05}),
    ("support", {"model": "gpt2"}),
    ("gpus", {"name": "h100"}),
    ("models", {"name": "gpt2"}),
    ("prices", {"gpu": "T4", "provider": "aws"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    plan = tmp_path_factory.mktemp("plan") / "plan.json"
    succeeded(["plan", *words("plan", {**PLAN, "out": str(plan)})])
    log = "".join(LINES.format(number, 64 * number) for number in range(1, 40))
    texts = {"plan.json": plan.read_text(encoding="utf-8"), "run.sh": LAUNCH, "train.log": log, "nodes.txt": NODES}
    return texts | {"rules.txt": "$tp > 1\n"}


def words(name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return what a person types for the arguments of a tool."""
    options, positional = [], []
    for key, value in arguments.items():
        parameter, values = parameters(name)[key], value if isinstance(value, list) else [value]
        if isinstance(parameter, click.Argument):
            positional += values
        elif parameter.is_flag:  # type: ignore[attr-defined]
            options += (parameter.opts if value else parameter.secondary_opts)[:1]
        else:
            options += [f"{parameter.opts[0]}={item}" for item in values]
    return [*options, "--", *map(str, positional)]


def asked(name: str, arguments: Mapping[str, Any], folder: Path) -> Answer:
    """Return what a tool says, in a process of its own, which it must outlive."""
    told = answer_within(120.0, partial(answer, name, arguments, str(folder)))
    assert "ended without" not in str(told.get("errors"))
    return told


def lasting(document: Any) -> Any:
    """Return what does not hang on the clock."""
    if isinstance(document, dict):
        return {key: lasting(value) for key, value in document.items() if key not in ("seconds", "phases")}
    return [lasting(item) for item in document] if isinstance(document, list) else document


@pytest.mark.parametrize(("name", "arguments"), QUESTIONS)
def test_a_tool_says_what_its_command_says(
    name: str, arguments: dict[str, Any], files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    told = asked(name, arguments, there)
    monkeypatch.chdir(here)
    printed = run([name, "--json", *words(name, arguments)])
    if "errors" in told:
        assert printed.code == 2
        places = [f"{problem['path']}: " if problem["path"] else "" for problem in told["errors"]]
        said = [f"error: {place}{p['message']}" for place, p in zip(places, told["errors"], strict=True)]
        assert [line for line in printed.err.splitlines() if line.startswith("error: ")] == said
    else:
        assert lasting(told["document"]) == lasting(json.loads(printed.out))
        assert told["notes"] == printed.err.splitlines()


def test_a_note_reaches_who_asks(files: dict[str, str], tmp_path: Path) -> None:
    told = asked("export", {"plan": "plan.json", "to": "deepspeed", "nearest": True, "files": files}, tmp_path)
    assert any("priced for megatron" in note or "cannot run" in note for note in told["notes"])


BASES: Mapping[str, dict[str, Any]] = {
    "diagnose": {"plan": "plan.json", "measured": "20s", "best": False},
    "export": {"plan": "plan.json", "to": "megatron"},
    "check": {"plan": "plan.json"},
    "discover": {"from_file": ["nodes.txt"]},
    "gpus": {},
    "models": {"name": "gpt2"},
    "support": {"model": "gpt2"},
}
ODD: tuple[Any, ...] = ({"a": 1}, [[]], "", "\0", "yes")


@pytest.mark.parametrize("name", BASES)
def test_any_value_of_any_parameter_is_answered_or_refused(name: str, files: dict[str, str], tmp_path: Path) -> None:
    for place, (key, parameter) in enumerate(parameters(name).items()):
        for number, value in enumerate(ODD):
            folder = tmp_path / f"{place}-{number}"
            folder.mkdir()
            told = asked(name, {**BASES[name], key: value, "files": files}, folder)
            assert "document" in told or all(problem["message"] for problem in told["errors"])
            flag = getattr(parameter, "is_flag", False)
            assert not flag or "errors" in told, f"{key} is {value!r}, neither true nor false"
            assert key not in SHOWN or "errors" in told


@pytest.mark.parametrize("files", [[], {"a": {}}, {"a": 1}, "x", {"../a": "x"}, {"": "x"}, {"a/b": "", "a": ""}, {"\0": ""}, {"x" * 400: ""}, {"/x": ""}])  # fmt: skip
def test_files_that_are_no_texts_by_name_are_refused(files: Any, tmp_path: Path) -> None:
    assert all(problem["message"] for problem in asked("gpus", {"files": files}, tmp_path)["errors"])


def test_a_whole_number_may_be_written_as_a_fraction(tmp_path: Path) -> None:
    told = [asked("fit", {"model": "gpt2", "gpu": "T4", "precision": "fp16", "gpus": count}, tmp_path) for count in (2, 2.0)]  # fmt: skip
    assert lasting(told[0]) == lasting(told[1])
    assert "errors" in asked("fit", {"model": "gpt2", "gpu": "T4", "precision": "fp16", "gpus": 2.5}, tmp_path)


def test_a_diagnosis_that_is_kept_is_told_too(files: dict[str, str], tmp_path: Path) -> None:
    told = asked("diagnose", {**BASES["diagnose"], "out": "why.json", "files": files}, tmp_path)
    assert told["document"] == json.loads((tmp_path / "why.json").read_text(encoding="utf-8"))
