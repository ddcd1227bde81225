"""What `plan --programs --out` keeps is a program that trains on tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cli.running import refused, run, succeeded
from tests.spmd.test_command import under_torchrun
from tests.spmd.test_described import CONFIGS

from shardwright.runtime.storage.data import write_tokens
from shardwright.spmd.check import ThreadFabric, on_ranks
from shardwright.spmd.document import load
from shardwright.spmd.run import Course, _stepped
from shardwright.spmd.task import batch_shape, described_task
from shardwright.spmd.training import SpmdStep, whole_state

ROWS, POSITIONS = 8, 8


def test_a_program_that_is_kept_trains(tmp_path: Path) -> None:
    config, plan = tmp_path / "config.json", tmp_path / "plan.json"
    config.write_text(json.dumps(CONFIGS["llama"]))
    asked = [
        "--accept-guess",
        "--global-batch",
        str(ROWS),
        "--seq-len",
        str(POSITIONS),
        "--precision",
        "fp32",
        "--out",
        str(plan),
    ]
    made = succeeded(["plan", "--model", str(config), "--cluster", "1x1x4090 + 1x1x3090", *asked, "--programs"])
    file = tmp_path / "plan.program.json"
    assert f"-m shardwright spmd train {file} --data corpus.bin" in made.err
    assert "its graph ships with shardwright" in run(["spmd", "show", str(file)]).out
    found = load(file)
    assert batch_shape(found.graph)[:2] == (ROWS, POSITIONS)
    vocabulary = CONFIGS["llama"]["vocab_size"]

    def rows(first: int, count: int) -> NDArray[np.int64]:
        return np.random.default_rng(0).integers(0, vocabulary, (count, POSITIONS + 1))

    task = described_task(found, rows)

    def losses(fabric: ThreadFabric) -> list[float]:
        step = SpmdStep(found.graph, found.program, names=found.names, fabric=fabric)
        step.load(state)
        optimizer = task.optimizer_of(step.named_parameters())
        return [_stepped(step, optimizer, task, number, Course(clip=1.0)) for number in range(3)]

    state = {name: tensor.detach() for name, tensor in whole_state(task.build()).items()}
    one, other = on_ranks(found.program.ranks, losses)
    assert one == other and abs(one[0] - math.log(vocabulary)) < 0.1 and one[2] < one[0]


def test_a_run_goes_on_with_the_data_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program goes on only with the files, their weights and their order that its checkpoint was written with."""
    config, plan, out = tmp_path / "config.json", tmp_path / "plan.json", tmp_path / "run"
    config.write_text(json.dumps({**CONFIGS["llama"], "vocab_size": 512}))
    asked = ["--accept-guess", "--global-batch", str(ROWS), "--seq-len", str(POSITIONS), "--precision", "fp32"]
    machines = ["--cluster", "1x1x4090 + 1x1x3090"]
    succeeded(["plan", "--model", str(config), *machines, *asked, "--programs", "--out", str(plan)])
    for name in ("one", "other"):
        (tmp_path / name).write_text(f"{name} text of many " * 200)
        write_tokens(tmp_path / f"{name}.bin", [tmp_path / name])
    one, other = (str(tmp_path / f"{name}.bin") for name in ("one", "other"))
    arguments = ["spmd", "train", str(tmp_path / "plan.program.json"), "--out", str(out), "--json"]
    under_torchrun(tmp_path, 2, *arguments, "--data", one, "--steps", "1")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for data in ((other,), (one, other), (f"{one}=3", f"{other}=1")):
        words = [word for file in data for word in ("--data", file)]
        message = refused(run([*arguments, *words, "--steps", "2", "--resume", str(out)]))
        assert "--data" in message and "the checkpoint was written with" in message
    monkeypatch.undo()
    told = under_torchrun(tmp_path, 2, *arguments, "--data", one, "--steps", "3", "--resume", str(out))
    assert len(json.loads(told)["losses"]) == 2


def test_a_task_and_data_exclude_each_other(tmp_path: Path, monkeypatch) -> None:
    from tests.spmd.test_placements import fsdp

    from shardwright.spmd.document import save

    save(fsdp((2.0, 1.0))[0], step := tmp_path / "step.json")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "MODULE:FACTORY, or --data" in refused(run(["spmd", "train", str(step)]))
    assert "name its task" in refused(run(["spmd", "train", str(step), "--data", "corpus.bin"]))
