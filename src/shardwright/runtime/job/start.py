"""How a run begins: with new weights, those of a Hugging Face folder, or from the newest checkpoint that all ranks find
whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from shardwright.errors import Problem, SpecError
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.runtime.job.course import origin_of, require_same_course
from shardwright.runtime.job.inputs import details_for, samples_of
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.job.watchdog import STARTING
from shardwright.runtime.job.worker import Worker
from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.layout.process_groups import ProcessGroups, make_process_groups, with_meeting
from shardwright.runtime.model.blocks import layer_forward
from shardwright.runtime.model.initial import Initial, as_kept, beside, seeded
from shardwright.runtime.model.regions import compiled
from shardwright.runtime.step.compilation import run_each_kind
from shardwright.runtime.step.engine import Engine, make_engine
from shardwright.runtime.storage.checkpoint import Checkpoint, open_checkpoint, restore
from shardwright.runtime.storage.manifest import Course, step_of
from shardwright.runtime.storage.steps import DAMAGED, GIVEN_UP, checkpoints, resumable, set_aside
from shardwright.runtime.storage.weights import from_folder, open_adapters, open_weights


@record
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


def engine_of(
    layout: Layout,
    rank: int,
    groups: ProcessGroups,
    device: torch.device,
    settings: Settings,
    say: Callable[[str], None],
    *,
    fresh: bool,
) -> Engine:
    """Return the engine of a rank, with the weights that a run begins with if it is `fresh`, else to be set from what
    was kept, which frozen ones are not. `say` is told where layers cannot be compiled. Raises SpecError where weights
    do not fit, or the data do not say where documents end."""
    plan = layout.plan
    return make_engine(
        layout,
        rank,
        groups,
        details=details_for(plan.model, settings),
        recipe=settings.recipe,
        initial=initial_of(plan, settings) if fresh or plan.job.adapters else None,
        precision=settings.precision,
        device=device,
        layer=compiled(say) if settings.compiles else layer_forward,
        end=samples_of(plan, settings).document_end() if settings.mask_documents else None,
    )


def initial_of(plan: Plan, settings: Settings) -> Initial:
    """Return the weights that a run begins with, and adapters beside them. Raises SpecError where they do not fit."""
    model, adapter = plan.model, plan.job.adapter
    initial = seeded(model, settings.seed)
    if settings.weights is not None:
        initial = partial(open_weights(settings.weights).whole, model)
    if adapter is None:
        return initial
    frozen = as_kept(initial, adapter)
    if settings.adapters is not None:
        return from_folder(frozen, open_adapters(settings.adapters, adapter), model)
    return beside(frozen, settings.seed)


def begin_training(
    layout: Layout, worker: Worker, settings: Settings, course: Course, say: Callable[[str], None]
) -> StartingPoint:
    """Return where a rank begins. Raises as `engine_of` and `resumed`."""
    groups = with_meeting(make_process_groups(layout, worker.rank))
    fresh = settings.resume is None
    engine = engine_of(layout, worker.rank, groups, worker.device, settings, say, fresh=fresh)
    return StartingPoint(engine=engine, step=0, origin=0) if fresh else resumed(engine, settings, course)


def resumed(engine: Engine, settings: Settings, course: Course) -> StartingPoint:
    """Set an engine to the checkpoint that a run goes on from, and return where that is. Raises SpecError where none is
    whole, or it is of another course."""
    assert settings.resume is not None, "only called where there is one"
    checkpoint = resume(engine, settings, settings.resume, course)
    origin = origin_of(checkpoint.manifest, engine.layout.plan.job.global_batch)
    return StartingPoint(engine=engine, step=checkpoint.step, origin=origin)


def compile_layers(
    engine: Engine, settings: Settings, note: Callable[[str], None], meet_all: Callable[[], object]
) -> None:
    """Compile layers if the run does, and wait until all ranks have."""
    if settings.compiles:
        note(f"{STARTING}, compiling layers")
        run_each_kind(engine, evaluates=settings.held_out is not None)
        note(f"{STARTING}, waiting for others that compile")
        meet_all()


def resume(engine: Engine, settings: Settings, folder: Path, course: Course) -> Checkpoint:
    """Set an engine to the newest checkpoint in a folder (or to that which it is) that all ranks find whole, and return
    it. Newer ones that are damaged are named on standard error.

    Raises SpecError where none is whole, with what is wrong with each, or the course of one is another one.
    """
    damaged: dict[Path, str] = {}
    for step in resumable(folder):
        checkpoint, problem = _opened(step)
        if checkpoint is not None:
            require_same_course(
                checkpoint.manifest, engine.layout.plan, course, settings.accept_change, checkpoint.name
            )
        if not (problem := restore(engine, checkpoint, problem)):
            assert checkpoint is not None, "all ranks have read it"
            if engine.place.rank == 0:
                _give_up(damaged, checkpoint, settings)
            return checkpoint
        damaged[step] = problem
    raise SpecError(*(Problem("", problem) for problem in damaged.values()))


def _opened(folder: Path) -> tuple[Checkpoint | None, str]:
    """Return a checkpoint, or what is wrong with its manifest."""
    try:
        return open_checkpoint(folder), ""
    except SpecError as error:
        return None, str(error)


def _give_up(damaged: Mapping[Path, str], resumed: Checkpoint, settings: Settings) -> None:
    """Say which checkpoints are damaged, and set those aside that lie in the folder of this run, and where it trains
    on, what it had come to after the step that it goes on from: that would be kept and resumed in place of new steps.
    Damaged ones are left until an older one is found whole: so it is them, and not the way to all of them."""
    for folder, problem in damaged.items():
        kept = _set_aside(folder, DAMAGED) if folder.parent.resolve() == settings.out.resolve() else ""
        print(f"warning: {folder} is damaged{kept}: {problem}", file=sys.stderr, flush=True)
    trains = resumed.step < settings.steps
    for folder in (path for path in checkpoints(settings.out) if trains and step_of(path) > resumed.step):
        print(f"warning: {folder} is given up{_set_aside(folder, GIVEN_UP)}", file=sys.stderr, flush=True)
    if damaged:
        print(f"warning: training goes on from {resumed.name}", file=sys.stderr, flush=True)


def _set_aside(folder: Path, suffix: str) -> str:
    try:
        return f" and is kept as {set_aside(folder, suffix).name}"
    except OSError as error:
        return f" and cannot be renamed ({error.strerror or error})"
