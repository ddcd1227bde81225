"""Where a run goes on: at the newest checkpoint that all ranks find whole."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from shardwright.errors import Problem, SpecError
from shardwright.runtime.job.course import require_same_course
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.step.engine import Engine
from shardwright.runtime.storage.checkpoint import Checkpoint, open_checkpoint, restore
from shardwright.runtime.storage.manifest import Course
from shardwright.runtime.storage.steps import resumable, set_aside


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
                _give_up(damaged, step, settings.out)
            return checkpoint
        damaged[step] = problem
    raise SpecError(*(Problem("", problem) for problem in damaged.values()))


def _opened(folder: Path) -> tuple[Checkpoint | None, str]:
    """Return a checkpoint, or what is wrong with its manifest."""
    try:
        return open_checkpoint(folder), ""
    except SpecError as error:
        return None, str(error)


def _give_up(damaged: Mapping[Path, str], found: Path, out: Path) -> None:
    """Say which checkpoints are damaged, and set those aside that lie in the folder of this run. They are left until an
    older one is found whole: so it is them, and not the way to all of them."""
    for folder, problem in damaged.items():
        kept = _set_aside(folder) if folder.parent.resolve() == out.resolve() else ""
        print(f"warning: {folder} is damaged{kept}: {problem}", file=sys.stderr, flush=True)
    if damaged:
        print(f"warning: training goes on from {found}", file=sys.stderr, flush=True)


def _set_aside(folder: Path) -> str:
    try:
        return f" and is kept as {set_aside(folder).name}"
    except OSError as error:
        return f" and cannot be renamed ({error.strerror or error})"
