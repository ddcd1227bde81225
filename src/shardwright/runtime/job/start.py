"""How a run begins: with new weights, those of a Hugging Face folder, or where a checkpoint left off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from shardwright.errors import bad
from shardwright.runtime.job.course import samples_before
from shardwright.runtime.job.resume import resume
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.worker import Worker
from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.blocks import layer_forward
from shardwright.runtime.model.details import Details, details_of
from shardwright.runtime.model.initial import Initial, seeded
from shardwright.runtime.model.regions import compiled
from shardwright.runtime.step.engine import Engine, make_engine
from shardwright.runtime.storage.manifest import Course
from shardwright.runtime.storage.steps import checkpoints
from shardwright.runtime.storage.weights import open_weights
from shardwright.spec.model import Model
from shardwright.spec.text.reading import parse_json, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """Where a rank begins: its engine, the next step, and the sample that step 0 would begin with: not 0 where the
    global batch is another one than before."""

    engine: Engine
    step: int
    origin: int

    def course_at(self, course: Course, step: int) -> Course:
        """Return the course of a run before a step: with the samples that it has read."""
        samples = self.origin + step * self.engine.layout.plan.job.global_batch
        return replace(course, data={**course.data, "samples": samples})


def begin_training(
    layout: Layout,
    worker: Worker,
    settings: Settings,
    course: Course,
    say: Callable[[str], None],
    end: int | None = None,
) -> StartingPoint:
    """Return where a rank begins. Attention stays within documents where their last token `end` is given. `say` is told
    where layers cannot be compiled.

    Raises SpecError where no checkpoint is whole, or is of another course, or weights do not fit.
    """
    model = layout.plan.model
    initial: Initial | None = seeded(model, settings.seed)
    if settings.resume is not None:
        initial = None
    elif settings.weights is not None:
        initial = partial(open_weights(settings.weights).whole, model)
    engine = make_engine(
        layout,
        worker.rank,
        make_process_groups(layout, worker.rank),
        details=details_for(model, settings),
        recipe=settings.recipe,
        initial=initial,
        precision=settings.precision,
        device=worker.device,
        layer=compiled(say) if settings.compiles else layer_forward,
        end=end,
    )
    if settings.resume is None:
        return StartingPoint(engine=engine, step=0, origin=0)
    checkpoint = resume(engine, settings, settings.resume, course)
    usual = checkpoint.step * layout.plan.job.global_batch
    samples = samples_before(checkpoint.manifest)
    return StartingPoint(engine=engine, step=checkpoint.step, origin=0 if samples is None else samples - usual)


def require_fresh(settings: Settings) -> None:
    """Raise SpecError where a new run would mix its checkpoints with those of another."""
    if settings.resume is None and checkpoints(settings.out):
        message = "has the checkpoints of an earlier run"
        raise bad(
            f"`out={settings.out}`", message, f"go on from them with `resume={settings.out}`, or name another folder"
        )


def details_for(model: Model, settings: Settings) -> Details:
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
