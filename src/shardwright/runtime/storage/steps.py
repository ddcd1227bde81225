"""The checkpoints in a folder, of any version. Needs no PyTorch."""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import bad
from shardwright.runtime.storage.manifest import MANIFEST, Manifest, complete_steps, read_manifest, step_of
from shardwright.runtime.storage.version_1 import META, read_version_1, version_1_steps


def checkpoints(root: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    return sorted([*complete_steps(root), *version_1_steps(root)], key=step_of)


def newest_checkpoint(path: Path) -> Path:
    """Return a checkpoint itself, or the newest in a folder of several. Raises SpecError where there is none."""
    found = [path] if (path / MANIFEST).exists() or (path / META).exists() else checkpoints(path)
    if not found:
        raise bad(str(path), "has no complete checkpoint", "name the folder of a run that wrote one")
    return found[-1]


def manifest_of(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint. Raises SpecError where it is not whole."""
    return read_manifest(folder) if (folder / MANIFEST).exists() else read_version_1(folder)
