"""Files of pieces: one a rank, written in one go, read piece by piece, each verified by its hash. Needs no PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import bad
from shardwright.runtime.state.pieces import (
    DTYPES,
    CutShape,
    PieceOverlap,
    StatePiece,
    StoredPiece,
    copy_overlap,
    overlaps,
    split,
)
from shardwright.runtime.storage.manifest import Index, hash_of

LARGEST_PIECE_BYTES = 1 << 25
"""A reader that wants a part of a piece reads all of it to verify it: no more than this too much at either end."""
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
