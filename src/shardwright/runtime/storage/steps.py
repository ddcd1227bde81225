"""The checkpoints in a folder, of any version. Needs no PyTorch.

Those of version 1 are read as manifests: safetensors files by bucket, whole cuts, no hashes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwright.errors import Problem, SpecError, bad
from shardwright.runtime.state.pieces import CutShape, StatePiece, StoredPiece
from shardwright.runtime.storage.manifest import MANIFEST, STEP_FOLDER, Manifest, complete_steps, read_manifest, step_of

DAMAGED, GIVEN_UP = ".damaged", ".given-up"

META = "checkpoint.json"


def checkpoints(root: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    return sorted([*complete_steps(root), *version_1_steps(root)], key=step_of)


def resumable(path: Path) -> list[Path]:
    """Return the checkpoints in a folder to go on from, newest first; of a checkpoint itself, that one alone. Raises
    SpecError where there is none."""
    folders = [path] if (path / MANIFEST).exists() or (path / META).exists() else checkpoints(path)[::-1]
    if not folders:
        raise bad(str(path), "has no complete checkpoint", "name the folder of a run that wrote one")
    return folders


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


def set_aside(folder: Path, suffix: str) -> Path:
    """Give a checkpoint a name under which it is none, so that it takes no place among those that are kept, and return
    its new path. Raises OSError where that fails."""
    target = folder.with_name(f"{folder.name}{suffix}")
    shutil.rmtree(target, ignore_errors=True)
    return folder.rename(target)


def read_version_1(folder: Path) -> Manifest:
    """Return the manifest that a folder of version 1 would have. Raises SpecError where it is none."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        version, step, settings, scale = (
            meta["version"],
            int(meta["step"]),
            dict(meta["settings"]),
            meta.get("loss_scale"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise _broken(folder / META) from None
    if version != 1:
        raise bad(str(folder / META), f"has version {version}", "this release reads versions 1 and 2")
    shapes: dict[str, CutShape] = {}
    pieces = [stored for path in sorted(folder.glob("*.safetensors")) for stored in _pieces(path, shapes)]
    return Manifest(step=step, model="", settings=settings, loss_scale=scale, parameters=shapes, pieces=tuple(pieces))


def version_1_steps(root: Path) -> list[Path]:
    """Return the folders of steps of version 1, in no order."""
    return [path for path in root.glob("step-*") if STEP_FOLDER.fullmatch(path.name) and (path / META).exists()]


def _pieces(path: Path, shapes: dict[str, CutShape]) -> Iterator[StoredPiece]:
    """Yield the tensors of a file; `shapes` learns the shapes of parameters, from the last cut of each."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length))
        parts = json.loads(header.pop("__metadata__")["parts"])
        for key, (dim, start, stop) in parts.items():
            begin, end = header[key]["data_offsets"]
            shape = tuple(header[key]["shape"])
            kind, _, name = key.partition(":")
            cut = (start, stop) if dim is not None else (0, shape[0])
            _learn(shapes, name, shape, dim or 0, cut[1])
            if end > begin:
                piece = StatePiece(kind=kind, parameter=name, start=cut[0], stop=cut[1], low=0, high=(end - begin) // 4)
                where = 8 + length + begin
                yield StoredPiece(
                    piece=piece, file=path.name, offset=where, bytes=end - begin, dtype="float32", hash=""
                )
    except (OSError, ValueError, KeyError, TypeError):
        raise _broken(path) from None


def _learn(shapes: dict[str, CutShape], name: str, shape: tuple[int, ...], dim: int, stop: int) -> None:
    known = shapes[name].shape[dim] if name in shapes else 0
    shapes[name] = CutShape(shape=(*shape[:dim], max(stop, known), *shape[dim + 1 :]), dim=dim)


def _broken(path: Path) -> SpecError:
    return bad(str(path), "is no part of a whole checkpoint", "take an older checkpoint")
