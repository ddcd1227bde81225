"""Every option of `train` under --elastic: it does what it does in a run of fixed ranks, or is refused by name. The
options are those that click knows. (`test_reporting` has --mask-documents, which compiles its attention, and
trackers.)"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from tests.cli.running import refused, run
from tests.nightly import nightly
from tests.runtime.adapted import adapter_parts
from tests.runtime.commands import rows, run_ranks
from tests.runtime.recovery.fleet import CONFIG, UNDISTURBED_SECONDS, Fleet, copies, supplied

from shardwright.cli.app import app
from shardwright.cli.train_input import NOT_ELASTIC
from shardwright.cli.train_options import FleetOptions, names_of
from shardwright.plans.document import save
from shardwright.runtime.job import metrics
from shardwright.runtime.recovery.keeper import keeper
from shardwright.runtime.recovery.run import KeeperOptions
from shardwright.runtime.storage.data import write_tokens
from shardwright.runtime.storage.weights import save_adapters
from shardwright.spec.adapter import parse_adapter

RECIPE = (
    *("--learning-rate", 1e-3, "--schedule", "linear", "--warmup", 2, "--decay", 9, "--decay-from", 3),
    *("--final-fraction", 0.2, "--beta1", 0.8, "--beta2", 0.9, "--epsilon", 1e-7, "--weight-decay", 0.2),
    *("--clip", 0.5, "--optimizer", "muon", "--seed", 3, "--precision", "bf16"),
)
STEPS, KEPT, MORE = 8, 4, 12
ADAPTED = "adapted.json"
MEASURED = ("loss", "gradient_norm", "learning_rate", "held_out_loss")


def options() -> list[str]:
    train = app.get_command(click.Context(app), "train")
    assert train is not None
    return [str(item.name) for item in train.params]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan, data, and what a run of fixed ranks with every option left: checkpoints, measurements."""
    path = tmp_path_factory.mktemp("options")
    supplied(path, copies(1))
    write_tokens(path / "d.bin", [path / "a.txt"] * 60)
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "secret").write_text("a secret that is read from a file\n")
    with_adapters(path)
    out = path / "fixed"
    usual = ["--data", path / "c.bin", "--out", out, "--steps", MORE, "--save-weights", path / "hf"]
    done = run_ranks(1, 1, path / "plan.json", *usual, *everything(path, out), seconds=UNDISTURBED_SECONDS)
    assert done.returncode == 0, done.stderr
    return path


def with_adapters(folder: Path) -> None:
    """Put a plan of adapters into a folder, and adapters of its form."""
    plain, adapter = copies(1), parse_adapter("lora:4")
    plan = replace(plain, job=replace(plain.job, adapter=adapter))
    save(plan, folder / ADAPTED)
    zeros = {part.name: torch.zeros(part.shape) for part in adapter_parts(plan)}
    save_adapters(folder / "adapters", plan.model, adapter, zeros.__getitem__, "base")


def everything(folder: Path, out: Path) -> list[object]:
    """Return every option that runs of fixed ranks and elastic ones share, but for those of the beginning and end."""
    evaluated = ["--eval-data", folder / "c.bin", "--eval-every", 3, "--eval-batches", 2]
    measured = ["--profile", f"{out}-profile.json", "--profile-steps", 2, "--trace", f"{out}-trace.json"]
    kept = ["--checkpoint-every", KEPT, "--keep", 3, "--patience", 77, "--config", folder / "config.json"]
    return [*kept, *evaluated, *measured, *RECIPE]


def other_values(folder: Path) -> dict[str, list[object]]:
    """Return for each option what gives it another value than its usual one."""
    values: dict[str, object] = {
        "steps": 7, "checkpoint_every": 3, "keep": 4, "learning_rate": 0.1, "warmup": 3, "decay": 9, "beta1": 0.5, "beta2": 0.6, "epsilon": 0.1, "weight_decay": 0.7, "clip": 2, "seed": 9,
        "patience": 33, "snapshot_every": 3, "silence": 9, "wait": 5, "optimizer": "sgd",
        "precision": "bf16", "device": "cuda", "wandb": "project", "name": "here", "zone": "z", "notices": "aws",
        "listen": "127.0.0.1:29411", "join": "127.0.0.1:29412", "etcd": "127.0.0.1:2379",
        "upload": f"file://{folder}/store", "eval_data": folder / "c.bin", "weights": folder / "hf",
        "out": folder / "o", "data": folder / "d.bin", "save_weights": folder / "w", "logs": folder / "logs",
        "profile": folder / "p.json", "trace": folder / "t.json", "memory": folder / "memory",
        "config": folder / "config.json", "secret_file": folder / "secret", "adapter_weights": folder / "adapters",
    }  # fmt: skip
    told = {name: [flag(name), value] for name, value in values.items()}
    told |= {name: [flag(name)] for name in ("mask_documents", "compile", "json", "dry_run", "tensorboard", "elastic")}
    of_another: dict[str, list[object]] = {
        "plan": [],
        "machine_gpu": ["--machine-gpu", copies(1).cluster.pools[0].gpu.name],
        "eval_every": ["--eval-data", folder / "c.bin", "--eval-every", 2],
        "eval_batches": ["--eval-data", folder / "c.bin", "--eval-batches", 3],
        "schedule": ["--decay", 9, "--schedule", "wsd"],
        "decay_from": ["--decay", 9, "--decay-from", 4],
        "final_fraction": ["--decay", 9, "--final-fraction", 0.3],
        "profile_steps": ["--profile", folder / "p.json", "--profile-steps", 5],
        "resume": [*as_fixed(folder), "--resume", folder / "fixed"],
        "accept_change": [*as_fixed(folder), "--resume", folder / "fixed", "--accept-change", "seed"],
    }
    return told | of_another


def as_fixed(folder: Path) -> list[object]:
    """Return what a run that goes on from the checkpoints of fixed ranks cannot do otherwise."""
    return [*RECIPE, "--config", folder / "config.json"]


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@pytest.fixture
def told(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that gives what a keeper is told by some options beside the usual ones."""
    found: list[KeeperOptions] = []

    def keep(options: KeeperOptions) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr(keeper, "keep", keep)
    monkeypatch.setattr(metrics, "find_spec", lambda _name: object())
    usual = ["--elastic", "--out", tmp_path / "out", "--device", "cpu"]

    def ask(*more: object, plan: str = "plan.json") -> KeeperOptions | str:
        found.clear()
        data = () if "--data" in more else ("--data", folder / "c.bin")
        outcome = run(list(map(str, ["train", folder / plan, *usual, *data, *more])))
        return found[-1] if found else outcome.err if outcome.code == 2 else outcome.out

    return ask


@pytest.mark.parametrize("name", options())
def test_each_option_reaches_the_keeper_or_is_refused_by_name(name: str, folder: Path, told: Any) -> None:
    plan = ADAPTED if name == "adapter_weights" else "plan.json"
    answer = told(*other_values(folder)[name], plan=plan)
    if name in NOT_ELASTIC:
        assert f"error: {flag(name)}: does not go with --elastic" in answer
    elif name == "dry_run":
        assert "on 1 ranks" in answer
    elif name in ("plan", "elastic", "machine_gpu"):  # which every one of these runs has
        assert answer == told()
    else:
        assert isinstance(answer, KeeperOptions), answer
        usual = {"resume": as_fixed(folder), "accept_change": other_values(folder)["resume"]}
        assert answer != told(*usual.get(name, ()), plan=plan)


@pytest.mark.parametrize("name", sorted(names_of(FleetOptions) - {"elastic"}))
def test_options_of_elastic_runs_are_refused_without_elastic(name: str, folder: Path) -> None:
    words = ["train", folder / "plan.json", "--data", folder / "c.bin", *other_values(folder)[name]]
    assert f"{flag(name)}: needs --elastic" in refused(run(list(map(str, words))))


def test_a_single_checkpoint_is_no_way_to_keep_an_elastic_run(told: Any) -> None:
    assert "--keep 1: an elastic run keeps two checkpoints or more" in told("--keep", 1)


@pytest.mark.parametrize("compiles", ["--no-compile", *nightly(["--compile"])])
def test_every_option_does_what_it_does_in_a_run_of_fixed_ranks(folder: Path, tmp_path: Path, compiles: str) -> None:
    """The rows are equal to the last digit; checkpoints, profile, trace and logs are there. Then it goes on from a
    checkpoint of the other."""
    out = tmp_path / "machine-0" / "out"
    extra = [*everything(folder, out), "--logs", tmp_path / "logs", compiles]
    with Fleet(tmp_path, copies(1), STEPS, every=3, extra=extra) as fleet:
        fleet.finish()
        kept = {path.name for path in (out / "state").glob("step-*")}
    assert kept == {"step-00000004", "step-00000008"}
    fixed, elastic = rows(folder / "fixed"), rows(out)
    exact = compiles == "--no-compile"
    for name in MEASURED:
        first, second = ([row[name] for row in found[: STEPS - 1]] for found in (elastic, fixed))
        assert first == second or not exact, name  # the last one of eight is evaluated, of twelve it is not
        assert [float(x or 0) for x in first] == pytest.approx([float(x or 0) for x in second], rel=1e-2), name
    assert [row["step"] for row in elastic if row["held_out_loss"]] == ["3", "6", "8"]
    shapes = [shape_of(Path(f"{place}-profile.json")) for place in (folder / "fixed", out)]
    assert shapes[0] == shapes[1]
    trace = json.loads(Path(f"{out}-trace.json").read_text())
    assert {event["pid"] for event in trace["traceEvents"]}
    assert (tmp_path / "logs" / "generation_1" / "0" / "stderr.log").exists()
    place = tmp_path / "resumed"
    more = [*everything(folder, place / "machine-0" / "out"), "--resume", folder / "fixed" / "step-00000008"]
    with Fleet(place, copies(1), MORE, every=3, extra=more) as fleet:
        fleet.finish()
    again = rows(place / "machine-0" / "out")
    for name in MEASURED:
        assert [row[name] for row in again] == [row[name] for row in fixed[STEPS:]], name


def shape_of(profile: Path) -> object:
    """Return what a profile has beside times."""
    return keys_of(json.loads(profile.read_text()))


def keys_of(value: Any) -> object:
    if isinstance(value, dict):
        return {name: keys_of(item) for name, item in value.items()}
    return [keys_of(item) for item in value] if isinstance(value, list) else type(value).__name__
