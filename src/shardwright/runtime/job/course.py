"""The course of a run: what it was told and what it reads, checked before anything starts, and how far a run that goes
on may leave it.

Weights and optimizer state are of one model and method; adapters stand beside one set of frozen weights. Data, seed,
batch, sequence and precision may change where that is asked for by name; the recipe may, and what does is said. What is
not told travels with the checkpoint. Machines that train together may differ in nothing of it (`RunIdentity`). Needs no
PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Literal

from shardwright.errors import Problem, SpecError, bad, reject
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.runtime.job.settings import CHANGES, Settings
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.model.details import Details, details_of
from shardwright.runtime.state.pieces import CutShape, parameter_shapes, state_kinds
from shardwright.runtime.state.recipe import Recipe
from shardwright.runtime.storage.manifest import (
    Course,
    Manifest,
    checkpoints,
    described,
    hash_of,
    model_hash,
    newest_manifest,
)
from shardwright.runtime.storage.mixture import Mixture, Source, open_mixture
from shardwright.runtime.storage.weight_files import adapters_fingerprint, weights_fingerprint
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.text.reading import parse_json, read_text


def samples_of(plan: Plan, settings: Settings) -> Mixture:
    """Return the samples that a run trains on. Raises SpecError where they cannot be used."""
    return open_mixture(settings.data, plan.job.seq_len, settings.seed, plan.model.vocab, plan.job.global_batch)


def held_out_samples(settings: Settings, job: Job, vocab: int) -> Mixture | None:
    """Return the held-out samples of a run, None where there are none. Raises SpecError where they are fewer than a
    global batch, or not of the model's vocabulary."""
    if settings.held_out is None:
        return None
    return open_mixture([Source(path=settings.held_out)], job.seq_len, 0, vocab, job.global_batch)


def require_fresh(settings: Settings) -> None:
    """Raise SpecError where a run would mix its checkpoints with those of another."""
    there = checkpoints(settings.out)
    runs = () if settings.resume is None else (settings.resume.resolve(), settings.resume.resolve().parent)
    if there and settings.out.resolve() not in runs:
        message = "has the checkpoints of an earlier run"
        raise bad(
            f"`out={settings.out}`", message, f"go on from them with `resume={settings.out}`, or name another folder"
        )


def details_for(model: Model, settings: Settings) -> Details:
    """Return the details in the config given, else in that beside the weights, else the family's usual ones."""
    config, name = config_given(settings)
    return details_of(model, config, name)


def config_given(settings: Settings) -> tuple[dict[str, Any] | None, str]:
    """Return the config given, else that beside the weights, and its name; None where there is none."""
    path = settings.config
    if path is None and settings.weights is not None and (settings.weights / "config.json").exists():
        path = settings.weights / "config.json"
    if path is None:
        return None, "config.json"
    config = parse_json(read_text(path), str(path))
    if not isinstance(config, dict):
        raise bad(str(path), "is no config", "give a Hugging Face config.json")
    return config, str(path)


FIXED = ("model", "parameters", "layers", "config", "method", "adapter", "frozen_weights")
SAME_STATE = {"adamw", "adamw8bit"}  # in checkpoints, which have all moments in fp32
Change = Literal["fixed", "asked", "free"]


@record
class Difference:
    """What is another one in this run than in the checkpoint, and whether it may be."""

    name: str
    before: object
    now: object
    change: Change

    def __str__(self) -> str:
        before, now = self.shown
        return f"{self.name} {before} -> {now}"

    @property
    def shown(self) -> tuple[object, object]:
        """What it was and is, of several figures those that differ."""
        before, now = self.before, self.now
        if not (isinstance(before, dict) and isinstance(now, dict)):
            return before, now
        others = [key for key in dict.fromkeys((*before, *now)) if before.get(key) != now.get(key)]
        first, second = (", ".join(f"{key} {side.get(key, 'as usual')}" for key in others) for side in (before, now))
        return first, second


@record
class RunIdentity:
    """A run of several machines: its name, a hash of all that its state depends on beside the step; the hash of its
    model, its course, the step at which it begins and the sample that step 0 would begin with; what its ranks do
    `together` beside that; the kinds of its state and the shapes of its parameters."""

    name: str
    model: str
    course: Course
    step: int
    origin: int
    together: Mapping[str, Any]
    kinds: Mapping[str, tuple[str, ...]]
    shapes: Mapping[str, CutShape]

    @property
    def terms(self) -> dict[str, Any]:
        """All that must be the same on every machine, by name, as JSON data."""
        settings, data = self.course.settings, self.course.data
        return {
            **settings,
            "model": f"{settings['model']} ({self.model})",
            "data": f"{data['tokens']:,} tokens, fingerprint {data['fingerprint']}",
            "first_step": self.step,
            "origin": self.origin,
            **self.together,
        }


def identity_of(plan: Plan, settings: Settings, **together: Any) -> RunIdentity:
    """Return the run that a machine takes part in. Ranks meet in collectives wherever the step, an evaluation, a
    measurement or what else is `together` is due: they must agree on when. Raises SpecError where data or a checkpoint
    cannot be used."""
    samples, layout = samples_of(plan, settings), layout_of(plan)
    course, model = course_of(plan, settings, samples), model_hash(plan.model)
    step = origin = 0
    if settings.resume is not None:
        manifest = newest_manifest(settings.resume)[1]
        step, origin = manifest.step, origin_of(manifest, plan.job.global_batch)
    held_out = held_out_samples(settings, plan.job, plan.model.vocab)
    together |= {
        "steps": settings.steps,
        "eval_data": held_out and held_out.fingerprint,
        "eval_every": settings.evaluate_every,
        "eval_batches": settings.evaluate_batches,
        "checkpoint_every": settings.checkpoint_every,
        "profile_steps": settings.profile_steps if settings.profile is not None else 0,
        "trace": settings.trace is not None,
        "wandb": settings.wandb,
        "device": settings.device,
        "compile": settings.compiles,
        "weights": settings.weights and weights_fingerprint(settings.weights),
        "adapters": settings.adapters and adapters_fingerprint(settings.adapters),
    }
    named = [model, course.settings, course.data["fingerprint"], origin]
    return RunIdentity(
        name=hash_of(json.dumps(named, sort_keys=True).encode())[:16],
        model=model,
        course=course,
        step=step,
        origin=origin,
        together=json.loads(json.dumps(together)),
        kinds=state_kinds(layout, settings.recipe.method),
        shapes=parameter_shapes(layout),
    )


def other_terms(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return in words what another machine was told otherwise than this run was."""
    return [
        f"{name} {other.get(name, 'not at all')}, which is {mine.get(name, 'nothing')} in this run"
        for name in dict.fromkeys([*mine, *other])
        if mine.get(name) != other.get(name)
    ]


def origin_of(manifest: Manifest, batch: int) -> int:
    """Return the sample that step 0 of a run would begin with that goes on from a checkpoint: not 0 where its global
    batch is another one than before."""
    samples = samples_before(manifest)
    return 0 if samples is None else samples - manifest.step * batch


def course_of(plan: Plan, settings: Settings, mixture: Mixture) -> Course:
    """Return the course of a run. Raises SpecError where a config or frozen weights cannot be read."""
    adapter = plan.job.adapter
    settings_told = {
        "model": plan.model.name,
        "parameters": plan.model.parameters,
        "layers": len(plan.model.layers),
        "global_batch": plan.job.global_batch,
        "seq_len": plan.job.seq_len,
        "seed": settings.seed,
        "precision": settings.precision,
        "mask_documents": settings.mask_documents,
        "adapter": adapter
        and f"{adapter.name} with alpha {adapter.scale * adapter.rank:g} on {'+'.join(adapter.targets)}",
        "frozen_weights": adapter and _frozen_weights(settings),
        "config": described(details_for(plan.model, settings)),
        **asdict(settings.recipe),
        "betas": list(settings.recipe.betas),
    }
    data = {
        "file": mixture.name,
        "tokens": mixture.tokens,
        "tokenizer": mixture.parts[0].file.tokenizer,
        "fingerprint": mixture.fingerprint,
    }
    return Course(settings=settings_told, data=data, random={"seed": settings.seed})


def _frozen_weights(settings: Settings) -> str:
    if settings.weights is None:
        return f"seed {settings.seed}"
    return f"fingerprint {weights_fingerprint(settings.weights)}, in `weights=`"


def travelling(manifest: Manifest) -> Mapping[str, Any]:
    """Return what goes on from a checkpoint where a run is not told otherwise: the seed, and the fields of `Recipe`."""
    names = {"seed", *(item.name for item in fields(Recipe))} - {"method"}
    kept = {name: value for name, value in manifest.settings.items() if name in names}
    return kept | ({"betas": tuple(kept["betas"])} if "betas" in kept else {})


def differences(manifest: Manifest, plan: Plan, course: Course) -> tuple[Difference, ...]:
    """Return what is another one in a run than in a checkpoint. What the checkpoint does not say is not compared."""
    return tuple(_differences(manifest, model_hash(plan.model), course))


def require_same_course(
    manifest: Manifest, plan: Plan, course: Course, accepted: Sequence[str], where: str
) -> tuple[str, ...]:
    """Return in words what differs and may. Raises SpecError with everything that may not."""
    changes = differences(manifest, plan, course)
    reject(problem for item in changes for problem in _problems(item, accepted, where))
    return tuple(str(item) for item in changes)


def require_step_of(run: RunIdentity, manifest: Manifest) -> None:
    """Raise SpecError with everything in which a step of the object store is not of this run: its machines go on from
    what they find there unasked, so nothing may be another one. What the step does not say is not compared."""
    others = [*_differences(manifest, run.model, run.course)]
    batch = run.course.settings["global_batch"]
    if not others and origin_of(manifest, batch) != run.origin:
        now = run.origin + manifest.step * batch
        others = [Difference(name="samples before it", before=samples_before(manifest), now=now, change="fixed")]
    where, hint = f"step {manifest.step} in the object store", "give each run a place of its own, or the same options"
    if others:
        raise SpecError(*(_problem(item, where, hint) for item in others))


def samples_before(manifest: Manifest) -> int | None:
    """Return how many samples were read before a checkpoint, None where it does not say."""
    if "samples" in manifest.data:
        return int(manifest.data["samples"])
    batch = manifest.settings.get("global_batch")
    return None if batch is None else int(batch) * manifest.step


def _differences(manifest: Manifest, model: str, course: Course) -> Iterator[Difference]:
    before: dict[str, Any] = dict.fromkeys(("adapter", "frozen_weights"))  # of checkpoints older than adapters
    before |= {"method" if name == "optimizer" else name: value for name, value in manifest.settings.items()}
    if manifest.model and manifest.model != model:
        yield Difference(name="model", before=before.get("model"), now=course.settings["model"], change="fixed")
    for name, now in course.settings.items():
        if name not in before or before[name] == now or (name == "model" and manifest.model):
            continue
        change: Change = "fixed" if name in FIXED else "asked" if name in CHANGES else "free"
        if name == "method" and {before[name], now} == SAME_STATE:
            change = "free"
        yield Difference(name=name, before=before[name], now=now, change=change)
    if manifest.data.get("fingerprint", course.data["fingerprint"]) != course.data["fingerprint"]:
        shown = (f"{data['file']} ({data['tokens']:,} tokens)" for data in (manifest.data, course.data))
        yield Difference(name="data", before=next(shown), now=next(shown), change="asked")


def _problems(item: Difference, accepted: Sequence[str], where: str) -> Iterator[Problem]:
    if item.change == "fixed":
        same = "the `config=` or `weights=` that" if item.name == "config" else "what"
        yield _problem(item, where, f"go on with {same} it was written with, or start anew without `resume=`")
    elif item.change == "asked" and item.name not in accepted:
        yield _problem(item, where, f"go on with the same, or ask for it: `accept_change={item.name}`")


def _problem(item: Difference, where: str, hint: str) -> Problem:
    before, now = item.shown
    return Problem(where, f"was written with {item.name} {before}, this run has {now}", hint)
