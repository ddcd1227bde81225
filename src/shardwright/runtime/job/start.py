"""How a run begins: with new weights, those of a Hugging Face folder, or where a checkpoint left off."""

from __future__ import annotations

from functools import partial

from shardwright.errors import bad
from shardwright.runtime.job.finish import course_of
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.worker import Worker
from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.details import Details, details_of
from shardwright.runtime.model.initial import Initial, seeded
from shardwright.runtime.step.engine import DTYPES, Engine, make_engine
from shardwright.runtime.storage.checkpoint import Checkpoint, Course, checkpoints, open_checkpoint, restore
from shardwright.runtime.storage.weights import open_weights
from shardwright.spec.model import Model
from shardwright.spec.text.reading import parse_json, read_text


def begin_training(layout: Layout, worker: Worker, settings: Settings) -> tuple[Engine, int]:
    """Return the engine of a rank, ready for the step that is returned with it.

    Raises SpecError where a checkpoint is of another model, method, seed or batch, or weights do not fit.
    """
    model, checkpoint = layout.plan.model, None
    initial: Initial | None = seeded(model, settings.seed)
    if settings.resume is not None:
        checkpoint, initial = open_checkpoint(settings.resume), None
        _require_same(checkpoint, course_of(layout.plan, settings))
    elif settings.weights is not None:
        initial = partial(open_weights(settings.weights).whole, model)
    engine = make_engine(
        layout,
        worker.rank,
        make_process_groups(layout, worker.rank),
        details=_details(model, settings),
        recipe=settings.recipe,
        initial=initial,
        dtype=DTYPES[settings.precision],
        device=worker.device,
    )
    if checkpoint is None:
        return engine, 0
    restore(engine, checkpoint)
    return engine, checkpoint.step


def require_fresh(settings: Settings) -> None:
    """Raise SpecError where a new run would mix its checkpoints with those of another."""
    if settings.resume is None and checkpoints(settings.out):
        message = "has the checkpoints of an earlier run"
        raise bad(
            f"`out={settings.out}`", message, f"go on from them with `resume={settings.out}`, or name another folder"
        )


def _details(model: Model, settings: Settings) -> Details:
    """Return the details in the config given, else in that beside the weights, else the family's usual ones."""
    path = settings.config
    if path is None and settings.weights is not None and (settings.weights / "config.json").exists():
        path = settings.weights / "config.json"
    if path is None:
        return details_of(model, None)
    config = parse_json(read_text(path), str(path))
    if not isinstance(config, dict):
        raise bad(str(path), "is no config", "give a Hugging Face config.json")
    return details_of(model, config, str(path))


def _require_same(checkpoint: Checkpoint, course: Course) -> None:
    """Raise SpecError where the run would not go on as it began."""
    for key, value in course.settings.items():
        before = checkpoint.manifest.settings.get(key)
        if before != value:
            message = f"was written with {key} {before}, this run has {value}"
            raise bad(checkpoint.name, message, "go on as it began, or start anew without `resume=`")
