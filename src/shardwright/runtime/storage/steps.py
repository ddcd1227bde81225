"""The checkpoints in a folder, of any version. Needs no PyTorch."""

from __future__ import annotations

import shutil
from pathlib import Path

from shardwright.errors import Problem, SpecError, bad
from shardwright.runtime.storage.manifest import MANIFEST, Manifest, complete_steps, read_manifest, step_of
from shardwright.runtime.storage.version_1 import META, read_version_1, version_1_steps

DAMAGED = ".damaged"


def checkpoints(root: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    return sorted([*complete_steps(root), *version_1_steps(root)], key=step_of)


def resumable(path: Path) -> list[Path]:
    """Return the checkpoints in a folder to go on from, newest first; of a checkpoint itself, that one alone. Raises
    SpecError where there is none."""
    found = [path] if (path / MANIFEST).exists() or (path / META).exists() else checkpoints(path)[::-1]
    if not found:
        raise bad(str(path), "has no complete checkpoint", "name the folder of a run that wrote one")
    return found


def newest_checkpoint(path: Path) -> Path:
    """Return a checkpoint itself, or the newest in a folder of several. Raises SpecError where there is none."""
    return resumable(path)[0]


def newest_manifest(path: Path) -> tuple[Path, Manifest]:
    """Return the newest checkpoint to go on from whose manifest is whole, and that. Raises SpecError where there is
    none, with what is wrong with each."""
    problems: list[Problem] = []
    for folder in resumable(path):
        try:
            return folder, manifest_of(folder)
        except SpecError as error:
            problems += error.problems
    raise SpecError(*problems)


def manifest_of(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint. Raises SpecError where it is not whole."""
    return read_manifest(folder) if (folder / MANIFEST).exists() else read_version_1(folder)


def set_aside(folder: Path) -> Path:
    """Give a damaged checkpoint a name under which it is none, so that it takes no place among those that are kept, and
    return its new path. Raises OSError where that fails."""
    target = folder.with_name(f"{folder.name}{DAMAGED}")
    shutil.rmtree(target, ignore_errors=True)
    return folder.rename(target)
