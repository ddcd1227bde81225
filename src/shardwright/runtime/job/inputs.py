"""What a run reads, opened and checked before anything starts. Needs no PyTorch."""

from __future__ import annotations

from typing import Any

from shardwright.errors import bad
from shardwright.plans.plan import Plan
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.model.details import Details, details_of
from shardwright.runtime.storage.mixture import Mixture, Source, open_mixture
from shardwright.runtime.storage.steps import checkpoints
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
