"""The files of a step, without PyTorch: the manifest says what the state is of and where every piece of it lies; files
of pieces, one a rank, are written in one go and read piece by piece, each verified by its hash.

`step-00000100/manifest.json` is {"version": 2, "hash": H, "manifest": {…}}, H the xxh3-128 of the inner document with
sorted keys and no spaces. The folder has its name only once all files and then the manifest are on disk; what is still
being written has another. A rank that writes a file leaves its part of the manifest beside it, and rank 0 puts these
together: no collective carries state. `docs/checkpoint-format.md` describes all of it.

Checkpoints of version 1 are read as manifests: safetensors files by bucket, whole cuts, no hashes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardwright.errors import Problem, SpecError, bad
from shardwright.files import write_atomically
from shardwright.records import record
from shardwright.rows import grouped
from shardwright.runtime.state.pieces import (
    DTYPES,
    CutShape,
    PieceOverlap,
    StatePiece,
    StoredPiece,
    copy_overlap,
    overlaps,
    require_held,
    split,
)
from shardwright.spec.model import Model

MANIFEST, VERSION = "manifest.json", 2
STEP_FOLDER = re.compile(r"step-(\d{8,})")
Index = Mapping[tuple[str, str], Sequence[StoredPiece]]  # stored pieces by kind and parameter


@record
class Course:
    """What a manifest says of its run beside the state: what it was told, which data it has read how far, and its
    seeds; all of it JSON data."""

    settings: Mapping[str, Any]
    data: Mapping[str, Any]
    random: Mapping[str, Any]


@record
class Manifest:
    """State after `step` steps. `model` is the hash of what the weights are of (`model_hash`), `settings` what the run
    was told, `data` how far it has read what, `random` the seeds, `loss_scale` that of fp16; JSON data all of them."""

    step: int
    model: str
    settings: Mapping[str, Any]
    data: Mapping[str, Any] = field(default_factory=dict)
    random: Mapping[str, Any] = field(default_factory=dict)
    loss_scale: Mapping[str, Any] | None = None
    parameters: Mapping[str, CutShape]
    pieces: tuple[StoredPiece, ...]


def hash_of(content: bytes | bytearray | memoryview) -> str:
    """Return the content hash of bytes: xxh3-128, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(content)


def step_folder(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def working_folder(root: Path, step: int) -> Path:
    """Return the folder in which a step is written until it is complete."""
    return root / f".step-{step:08d}.tmp"


def working_folders(root: Path) -> list[Path]:
    """Return the folders of steps that are being written, or were when their run died."""
    return sorted(root.glob(".step-*.tmp*"))


def part_path(folder: Path, file: str) -> Path:
    """Return where the writer of a file leaves its part of the manifest."""
    return folder / f"{file}.pieces.json"


def write_part(folder: Path, file: str, pieces: Sequence[StoredPiece]) -> None:
    """Leave the part of the manifest for the pieces of a file. Raises SpecError where it cannot be written."""
    write_atomically(part_path(folder, file), json.dumps([_row(item) for item in pieces]))


def read_part(folder: Path, file: str) -> tuple[StoredPiece, ...]:
    """Return the pieces of a file as its writer left them. Raises SpecError where it has not."""
    path = part_path(folder, file)
    try:
        return tuple(_stored(file, row) for row in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise bad(str(path), "is missing or no part of a manifest", "write the checkpoint anew") from None


def remove_part(folder: Path, file: str) -> None:
    """Remove the part of a manifest that is now in the manifest."""
    part_path(folder, file).unlink()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a folder. Raises SpecError where it cannot be written."""
    write_atomically(folder / MANIFEST, manifest_text(manifest))


def manifest_text(manifest: Manifest) -> str:
    document: dict[str, Any] = {item.name: getattr(manifest, item.name) for item in fields(manifest)}
    document["parameters"] = {name: [list(cut.shape), cut.dim] for name, cut in manifest.parameters.items()}
    document["files"] = grouped((stored.file, _row(stored)) for stored in manifest.pieces)
    del document["pieces"]
    text = _canonical(document)
    return f'{{"version": {VERSION}, "hash": "{hash_of(text.encode())}", "manifest":\n{text}}}\n'


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder. Raises SpecError where it is missing, changed, or of another version."""
    path = folder / MANIFEST
    try:
        return parse_manifest(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise bad(str(path), f"cannot be read: {error.strerror or error}", "name a complete checkpoint") from None
    except UnicodeDecodeError:
        raise _changed(str(path)) from None


def parse_manifest(text: str, where: str) -> Manifest:
    """Return the manifest in a text. Raises SpecError where it is not whole and unchanged."""
    try:
        outer = json.loads(text)
        version, document = outer["version"], outer["manifest"]
        same = outer["hash"] == hash_of(_canonical(document).encode())
    except (ValueError, KeyError, TypeError, UnicodeError):
        raise _changed(where) from None
    if version != VERSION:
        raise bad(where, f"has version {version}", f"this release reads version {VERSION}")
    if not same:
        raise _changed(where)
    try:
        return _manifest(document, where)
    except SpecError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise _changed(where) from None


def step_of(folder: Path) -> int:
    match = STEP_FOLDER.fullmatch(folder.name)
    assert match is not None, "only folders of steps are asked for"
    return int(match[1])


def by_parameter(pieces: Iterable[StoredPiece]) -> Index:
    return grouped(((stored.piece.kind, stored.piece.parameter), stored) for stored in pieces)


def _manifest(document: Mapping[str, Any], where: str) -> Manifest:
    parameters = {
        name: CutShape(shape=tuple(map(int, shape)), dim=int(dim))
        for name, (shape, dim) in document["parameters"].items()
    }
    pieces = tuple(_stored(file, row) for file, rows in document["files"].items() for row in rows)
    for stored in pieces:
        require_held(stored.piece, parameters[stored.piece.parameter], where)
    rest = {item.name: document[item.name] for item in fields(Manifest) if item.name not in ("parameters", "pieces")}
    return Manifest(parameters=parameters, pieces=pieces, **rest)


def _row(stored: StoredPiece) -> list[Any]:
    piece = stored.piece
    interval = [piece.kind, piece.parameter, piece.start, piece.stop, piece.low, piece.high]
    return [*interval, stored.offset, stored.bytes, stored.dtype, stored.hash]


def _stored(file: str, row: Sequence[Any]) -> StoredPiece:
    kind, parameter, start, stop, low, high, offset, length, dtype, content = row
    if Path(file).name != file or dtype not in DTYPES:
        raise ValueError(file)
    piece = StatePiece(kind=kind, parameter=parameter, start=int(start), stop=int(stop), low=int(low), high=int(high))
    if int(length) != piece.elements * DTYPES[dtype].itemsize:
        raise ValueError(piece.name)
    return StoredPiece(piece=piece, file=file, offset=int(offset), bytes=int(length), dtype=dtype, hash=str(content))


def _canonical(document: Any) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _changed(where: str) -> SpecError:
    return bad(where, "is cut off or was changed after it was written", "take an older checkpoint")


def model_hash(model: Model) -> str:
    return hash_of(json.dumps(described(replace(model, name="")), sort_keys=True).encode())


def described(value: Any) -> Any:
    """Return a record as JSON data. Fields that have their default value are left out, so that a field which a later
    release adds leaves the description as it is."""
    if is_dataclass(value):
        stated = {item.name: getattr(value, item.name) for item in fields(value) if _told(value, item)}
        return {name: described(item) for name, item in stated.items()}
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    return value


def _told(value: Any, item: Any) -> bool:
    return item.default is MISSING or getattr(value, item.name) != item.default


# A reader that wants a part of a piece reads all of it to verify it: no more than this too much at either end.
LARGEST_PIECE_BYTES = 1 << 25
Values = NDArray[Any]
Fetch = Callable[[StoredPiece], Values]


def write_pieces(folder: Path, file: str, items: Iterable[tuple[StatePiece, Values]]) -> tuple[StoredPiece, ...]:
    """Write the flat values of pieces to a file, have it on disk, and return where they lie.

    Raises OSError where that fails, FloatingPointError where a value is not finite.
    """
    stored: list[StoredPiece] = []
    offset = 0
    with (folder / file).open("wb") as out:
        for piece, values in items:
            for part in split(piece, LARGEST_PIECE_BYTES // values.itemsize):
                content = values[part.low - piece.low : part.high - piece.low]
                stored.append(stored_piece(part, content, file, offset))
                out.write(content.data.cast("B"))
                offset += content.nbytes
        out.flush()
        os.fsync(out.fileno())
    return tuple(stored)


def stored_piece(piece: StatePiece, values: Values, file: str, offset: int) -> StoredPiece:
    """Return a piece as it lies in a file or snapshot. Raises FloatingPointError where a value is not finite."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise FloatingPointError(f"{piece.name} has values that are not finite")
    dtype = next(name for name, known in DTYPES.items() if known == values.dtype)
    content = hash_of(values.data.cast("B"))
    return StoredPiece(piece=piece, file=file, offset=offset, bytes=values.nbytes, dtype=dtype, hash=content)


def read_piece(folder: Path, stored: StoredPiece) -> Values:
    """Return the flat values of a piece in a file. Raises SpecError where it is missing, cut off or changed."""
    path = folder / stored.file
    content = bytearray(stored.bytes)
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(stored.offset)
            length = 0
            while length < stored.bytes and (more := file.readinto(memoryview(content)[length:])):
                length += more
    except OSError as error:
        raise bad(str(path), f"cannot be read: {error.strerror or error}", "take an older checkpoint") from None
    return verified(stored, memoryview(content)[:length], str(path))


def verified(stored: StoredPiece, content: memoryview, where: str) -> Values:
    """Return bytes as the flat values of a piece. Raises SpecError where they are not those that were written."""
    if len(content) != stored.bytes:
        raise bad(where, f"is cut off within the {stored.piece.name}", "take an older checkpoint")
    if stored.hash and hash_of(content) != stored.hash:
        raise bad(where, f"has changed: the hash of the {stored.piece.name} differs", "take an older checkpoint")
    values: Values = np.frombuffer(content, dtype=DTYPES[stored.dtype])
    return values


def assemble(
    targets: Mapping[StatePiece, Values], index: Index, shapes: Mapping[str, CutShape], fetch: Fetch, where: str
) -> None:
    """Fill the flat values of `targets` from stored pieces, fetching each of them once. Raises SpecError where a target
    is not covered, its shape is another one, or `fetch` does."""
    wanted: dict[StoredPiece, list[tuple[PieceOverlap, Values]]] = {}
    for target, values in targets.items():
        covered = 0
        for stored in index.get((target.kind, target.parameter), ()):
            for overlap in overlaps(stored.piece, target, shapes[target.parameter]):
                wanted.setdefault(stored, []).append((overlap, values))
                covered += overlap.elements
        if covered != target.elements:
            message = f"has {covered:,} of {target.elements:,} values of the {target.name}"
            raise bad(where, message, "resume with the same model and optimizer")
    for stored in sorted(wanted, key=lambda stored: (stored.file, stored.offset)):
        content = fetch(stored)
        for overlap, values in wanted[stored]:
            copy_overlap(overlap, content, values)


DAMAGED, GIVEN_UP = ".damaged", ".given-up"

META = "checkpoint.json"


def checkpoints(root: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, of any version, oldest first."""
    folders = (path for path in root.glob("step-*") if STEP_FOLDER.fullmatch(path.name))
    return sorted((path for path in folders if (path / MANIFEST).exists() or (path / META).exists()), key=step_of)


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
