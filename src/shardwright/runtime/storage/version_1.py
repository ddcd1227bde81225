"""Checkpoints of version 1 as manifests: safetensors files by bucket, whole cuts, no hashes. Needs no PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwright.errors import SpecError, bad
from shardwright.runtime.state.pieces import CutShape, StatePiece, StoredPiece
from shardwright.runtime.storage.manifest import STEP_FOLDER, Manifest

META = "checkpoint.json"


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
