"""The course of a run: what it was told and what it reads, and how far a run that goes on may leave it.

Weights and optimizer state are of one model and method. Data, seed, batch, sequence and precision may change where that
is asked for by name; the recipe may, and what does is said. What is not told travels with the checkpoint. Needs no
PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from shardwright.errors import Problem, SpecError
from shardwright.plans.plan import Plan
from shardwright.runtime.job.settings import CHANGES, Settings
from shardwright.runtime.state.recipe import Recipe
from shardwright.runtime.storage.manifest import Course, Manifest
from shardwright.runtime.storage.mixture import Mixture
from shardwright.runtime.storage.model_hash import model_hash

FIXED = ("model", "parameters", "layers", "method")
SAME_STATE = {"adamw", "adamw8bit"}  # in checkpoints, which have all moments in fp32
Change = Literal["fixed", "asked", "free"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What is another one in this run than in the checkpoint, and whether it may be."""

    name: str
    before: object
    now: object
    change: Change

    def __str__(self) -> str:
        return f"{self.name} {self.before} -> {self.now}"


def course_of(plan: Plan, settings: Settings, mixture: Mixture) -> Course:
    """Return the course of a run."""
    told = {
        "model": plan.model.name,
        "parameters": plan.model.parameters,
        "layers": len(plan.model.layers),
        "global_batch": plan.job.global_batch,
        "seq_len": plan.job.seq_len,
        "seed": settings.seed,
        "precision": settings.precision,
        "mask_documents": settings.mask_documents,
        **asdict(settings.recipe),
        "betas": list(settings.recipe.betas),
    }
    data = {
        "file": mixture.name,
        "tokens": mixture.tokens,
        "tokenizer": mixture.parts[0].file.tokenizer,
        "fingerprint": mixture.fingerprint,
    }
    return Course(settings=told, data=data, random={"seed": settings.seed})


def travelling(manifest: Manifest) -> Mapping[str, Any]:
    """Return what goes on from a checkpoint where a run is not told otherwise: the seed, and the fields of `Recipe`."""
    names = {"seed", *(item.name for item in fields(Recipe))} - {"method"}
    found = {name: value for name, value in manifest.settings.items() if name in names}
    return found | ({"betas": tuple(found["betas"])} if "betas" in found else {})


def differences(manifest: Manifest, plan: Plan, course: Course) -> tuple[Difference, ...]:
    """Return what is another one in a run than in a checkpoint. What the checkpoint does not say is not compared."""
    return tuple(_differences(manifest, plan, course))


def require_same_course(
    manifest: Manifest, plan: Plan, course: Course, accepted: Sequence[str], where: str
) -> tuple[str, ...]:
    """Return in words what differs and may. Raises SpecError with everything that may not."""
    found = differences(manifest, plan, course)
    problems = [problem for item in found for problem in _problems(item, accepted, where)]
    if problems:
        raise SpecError(*problems)
    return tuple(str(item) for item in found)


def samples_before(manifest: Manifest) -> int | None:
    """Return how many samples were read before a checkpoint, None where it does not say."""
    if "samples" in manifest.data:
        return int(manifest.data["samples"])
    batch = manifest.settings.get("global_batch")
    return None if batch is None else int(batch) * manifest.step


def _differences(manifest: Manifest, plan: Plan, course: Course) -> Iterator[Difference]:
    before = {"method" if name == "optimizer" else name: value for name, value in manifest.settings.items()}
    if manifest.model and manifest.model != model_hash(plan.model):
        yield Difference(name="model", before=before.get("model"), now=plan.model.name, change="fixed")
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
        hint = "go on with what it was written with, or start anew without `resume=`"
        yield Problem(where, f"was written with {item.name} {item.before}, this run has {item.now}", hint)
    elif item.change == "asked" and item.name not in accepted:
        hint = f"go on with the same, or ask for it: `accept_change={item.name}`"
        yield Problem(where, f"was written with {item.name} {item.before}, this run has {item.now}", hint)
