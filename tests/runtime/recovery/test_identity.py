"""Machines that would train by different rules do not train together: each of what must be alike is refused by name,
with both values. The fields are those of the dataclasses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.runtime.recovery.fleet import CONFIG, Fleet, copies, settings_in
from tests.runtime.samples import tiny_model

from shardwright import Plan, SpecError
from shardwright.recovery.quorum import Machine
from shardwright.runtime.job.course import RunIdentity, identity_of, other_terms, require_step_of
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.recovery.change.coordinator import Coordinator
from shardwright.runtime.recovery.wire import Channel, Message
from shardwright.runtime.state.recipe import Recipe
from shardwright.runtime.storage.data import write_tokens
from shardwright.runtime.storage.manifest import Manifest, manifest_text, parse_manifest
from shardwright.runtime.storage.mixture import Source
from shardwright.spec.adapter import Adapter

Change = Callable[[Plan, Settings, Path], tuple[Plan, Settings]]
WORDS = {"method": "sgd", "schedule": "wsd"}
OF_ONE_MACHINE = {
    "out", "keep", "resume", "accept_change", "save_weights", "config", "patience_seconds", "tensorboard", "weights", "adapters",
    "recipe", "precision", "data", "held_out",
}  # fmt: skip
"""Settings that may differ, or that another case of `CHANGES` covers: what is in a file counts, not where it lies."""


def other(value: Any, name: str) -> Any:
    """Return another value of the kind of a field."""
    if name in WORDS:
        return WORDS[name]
    if isinstance(value, bool) or value is None:
        return not value
    return (0.5, 0.6) if isinstance(value, tuple) else value + 1 if isinstance(value, int) else value / 2 + 0.25


def of_recipe(name: str) -> Change:
    def change(plan: Plan, settings: Settings, _folder: Path) -> tuple[Plan, Settings]:
        recipe = replace(settings.recipe, **{name: other(getattr(settings.recipe, name), name)})
        return plan, replace(settings, recipe=recipe)

    return change


def of_settings(name: str, value: Any = MISSING) -> Change:
    def change(plan: Plan, settings: Settings, folder: Path) -> tuple[Plan, Settings]:
        given = value(folder) if callable(value) else value
        return plan, replace(settings, **{name: other(getattr(settings, name), name) if value is MISSING else given})

    return change


def of_job(**changes: Any) -> Change:
    return lambda plan, settings, _folder: (replace(plan, job=replace(plan.job, **changes)), settings)


def of_model(plan: Plan, settings: Settings, _folder: Path) -> tuple[Plan, Settings]:
    return replace(plan, model=tiny_model(4, vocab=258)), settings


def another_text(folder: Path) -> Path:
    (folder / "b.txt").write_text("It is a truth that is not acknowledged at all, that a single man. " * 50)
    write_tokens(folder / "b.bin", [folder / "b.txt"])
    return folder / "b.bin"


def another_config(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"rms_norm_eps": 0.25}))
    return folder / "config.json"


CHANGES: dict[str, Change] = {
    **{item.name: of_recipe(item.name) for item in fields(Recipe)},
    "model": of_model,
    "global_batch": of_job(global_batch=12),
    "seq_len": of_job(seq_len=8),
    "precision": of_settings("precision", "bf16"),
    "adapter": of_job(adapter=Adapter()),
    "data": of_settings("data", lambda folder: (Source(path=another_text(folder)),)),
    "eval_data": of_settings("held_out", another_text),
    "config": of_settings("config", another_config),
    "seed": of_settings("seed"),
    "mask_documents": of_settings("mask_documents"),
    "steps": of_settings("steps"),
    "checkpoint_every": of_settings("checkpoint_every"),
    "eval_every": of_settings("evaluate_every"),
    "eval_batches": of_settings("evaluate_batches"),
    "profile_steps": of_settings("profile", lambda folder: folder / "p.json"),
    "trace": of_settings("trace", lambda folder: folder / "t.json"),
    "wandb": of_settings("wandb", "project"),
    "device": of_settings("device", "cuda"),
    "compile": of_settings("compile", True),
}
COURSE = ("model", "global_batch", "seq_len", "precision", "data", "seed", "mask_documents")


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Settings, RunIdentity]:
    plan, settings = copies(3), settings_in(tmp_path_factory.mktemp("mine"))
    return plan, settings, identity_of(plan, settings, snapshot_every=10)


def joined(run: RunIdentity, terms: dict[str, Any]) -> Message:
    """Return what a coordinator answers to a machine."""
    machine = asdict(Machine(name="m1", host="h", port=1, gpu="A", gpus=1))
    coordinator = cast(Coordinator, SimpleNamespace(_run=run))
    return Coordinator.join(
        coordinator, cast(Channel, None), {"machine": machine, "terms": json.loads(json.dumps(terms))}
    )


@pytest.mark.parametrize("name", CHANGES)
def test_a_machine_that_would_do_otherwise_is_refused_with_both_values(
    name: str, mine: tuple[Plan, Settings, RunIdentity], tmp_path: Path
) -> None:
    plan, settings, run = mine
    another = identity_of(*CHANGES[name](plan, settings, tmp_path), snapshot_every=10)
    before, now = run.terms[name], another.terms[name]
    assert before != now
    assert f"{name} {now}, which is {before} in this run" in joined(run, another.terms)["refused"]


def test_every_setting_is_alike_on_all_machines_or_is_one_machines_own() -> None:
    """A field that is new is in neither, and fails here."""
    here = {"evaluate_every", "evaluate_batches", "profile"} | CHANGES.keys()
    assert {item.name for item in fields(Settings)} - OF_ONE_MACHINE <= here
    assert not OF_ONE_MACHINE & {item.name for item in fields(Recipe)}


def test_the_interval_of_snapshots_and_the_checkpoint_that_is_gone_on_from_are_alike(
    mine: tuple[Plan, Settings, RunIdentity],
) -> None:
    plan, settings, run = mine
    another = replace(identity_of(plan, settings, snapshot_every=11), step=4, origin=2)
    words = "; ".join(other_terms(run.terms, another.terms))
    for name, values in {"snapshot_every": (11, 10), "first_step": (4, 0), "origin": (2, 0)}.items():
        assert f"{name} {values[0]}, which is {values[1]} in this run" in words


def test_paths_and_what_is_a_machines_own_may_differ(mine: tuple[Plan, Settings, RunIdentity], tmp_path: Path) -> None:
    plan, settings, run = mine
    elsewhere = replace(settings_in(tmp_path), out=tmp_path / "o", patience_seconds=9.0, keep=5, tensorboard=True)
    assert not other_terms(run.terms, identity_of(plan, elsewhere, snapshot_every=10).terms)
    assert settings.data != elsewhere.data


def step_of(run: RunIdentity, samples: int) -> Manifest:
    """Return what is said of step 5 of a run, as it is read back."""
    course = run.course
    data = {**course.data, "samples": samples}
    manifest = Manifest(step=5, model=run.model, settings=course.settings, data=data, parameters={}, pieces=())
    return parse_manifest(manifest_text(manifest), "m")


@pytest.mark.parametrize("name", sorted({*COURSE, *(item.name for item in fields(Recipe))}))
def test_a_step_of_the_object_store_that_another_run_wrote_is_refused_by_name(
    name: str, mine: tuple[Plan, Settings, RunIdentity], tmp_path: Path
) -> None:
    plan, settings, run = mine
    require_step_of(run, step_of(run, 30))
    another = identity_of(*CHANGES[name](plan, settings, tmp_path))
    with pytest.raises(SpecError, match=f"step 5 in the object store: was written with {name} .*, this run has "):
        require_step_of(run, step_of(another, 30))


def test_a_step_of_the_object_store_with_other_samples_before_it_is_refused(
    mine: tuple[Plan, Settings, RunIdentity],
) -> None:
    with pytest.raises(SpecError, match="was written with samples before it 32, this run has 30"):
        require_step_of(mine[2], step_of(mine[2], 32))


@pytest.mark.nightly
def test_a_run_whose_store_has_steps_of_another_ends_and_names_what_differs(tmp_path: Path) -> None:
    upload = ["--upload", f"file://{tmp_path / 'store'}"]
    with Fleet(tmp_path / "first", copies(1), 5, extra=upload) as fleet:
        fleet.finish()
    with Fleet(tmp_path / "second", copies(1), 5, extra=[*upload, "--weight-decay", 0]) as fleet:
        assert fleet.running[0].wait(120) == 2
        said = (fleet.place(0) / "log").read_text()
        assert "in the object store: was written with weight_decay 0.1, this run has 0.0 (" in said
        assert "Traceback" not in said


def test_of_two_keepers_the_one_with_another_weight_decay_is_refused(tmp_path: Path) -> None:
    with Fleet(tmp_path, copies(2), 5, options={1: ["--weight-decay", 0]}) as fleet:
        assert fleet.running[1].wait(120) == 2
        said = (fleet.place(1) / "log").read_text()
        assert "error: machine-1 is of another run: weight_decay 0.0, which is 0.1 in this run (" in said
        assert "Traceback" not in said
