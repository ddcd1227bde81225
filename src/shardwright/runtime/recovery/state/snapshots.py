"""A machine's own tiers: snapshots in mapped files of host memory that outlive their writers, and its disk. No PyTorch.

Each writer has two files in turn. Before it writes into one, the keeper forgets what that held; when it has written,
the keeper hashes it and knows it again. `index.json` beside the files says what they hold, so that a new keeper on the
machine finds what one before it left. The newest step that all machines have is never written over. The disk, which is
slower, has the machine's part of a step in a folder of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.errors import SpecError, bad
from shardwright.files import write_atomically
from shardwright.records import record
from shardwright.recovery.transfer import DISK, MEMORY
from shardwright.runtime.recovery.state.inventory import HeldPiece, held_of, held_row
from shardwright.runtime.state.pieces import DTYPES, StatePiece, StoredPiece
from shardwright.runtime.storage.manifest import Values, hash_of, read_piece, step_folder, stored_piece, working_folder

INDEX = "index.json"


@record
class Snapshot:
    """What a file holds: pieces of the state after `step` steps, written under `generation`. `origin` is the machine
    that it is a copy of, "" for the machine's own; `scale` is that of the loss in fp16."""

    file: str
    step: int
    generation: int
    origin: str
    pieces: tuple[StoredPiece, ...]
    scale: dict[str, Any] | None = None


class Snapshots:
    """The snapshots in a folder of host memory, by file. `committed` is the newest step that all machines have."""

    def __init__(self, folder: Path, machine: str, run: str) -> None:
        self.folder, self._machine, self._run = folder, machine, run
        self.by_file: dict[str, Snapshot] = {}
        self.committed = -1
        self.changed = asyncio.Condition()
        folder.mkdir(parents=True, exist_ok=True)
        self._adopt()

    def begin(self, writer: str, generation: int) -> str:
        """Return the file that a writer may write now, whose content is forgotten."""
        names = [f"{generation:06d}-{writer}.{turn}.bin" for turn in "ab"]
        holding = [self.by_file.get(name) for name in names]
        steps = [-1 if snapshot is None else snapshot.step for snapshot in holding]
        file = names[1] if steps[0] > steps[1] else names[0]
        if steps[names.index(file)] == self.committed and self.committed >= 0:
            file = names[1 - names.index(file)]
        if self.by_file.pop(file, None) is not None:
            self._save()
        return file

    def done(self, snapshot: Snapshot) -> None:
        """Know a file that has been written and hashed."""
        self.by_file[snapshot.file] = snapshot
        self._save()

    def forget(self, file: str) -> None:
        self.by_file.pop(file, None)
        self._save()
        (self.folder / file).unlink(missing_ok=True)

    def delete(self) -> None:
        self.by_file.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def drop(self, held: StoredPiece) -> None:
        """Forget a piece that turned out to be damaged."""
        snapshot = self.by_file.get(held.file)
        if snapshot is not None:
            kept = tuple(item for item in snapshot.pieces if item.piece != held.piece)
            self.by_file[held.file] = replace(snapshot, pieces=kept)
            self._save()

    async def commit(self, step: int, generation: int) -> None:
        """Say that all machines have a step: older files of other generations, and of fetched pieces, go."""
        async with self.changed:
            self.committed = max(self.committed, step)
            self.changed.notify_all()
        for file, snapshot in list(self.by_file.items()):
            if snapshot.step < self.committed and (snapshot.generation < generation or ".fetched." in file):
                self.forget(file)

    def go_back(self, step: int) -> None:
        """Know that the run goes on at a step: what was newer is of no use to any machine."""
        self.committed = min(self.committed, step)

    def holdings(self) -> Iterator[HeldPiece]:
        for snapshot in self.by_file.values():
            for stored in snapshot.pieces:
                yield _held(self._machine, snapshot, stored)

    def _save(self) -> None:
        rows = {
            name: [s.step, s.generation, s.origin, s.scale, [held_row(_held(self._machine, s, p)) for p in s.pieces]]
            for name, s in self.by_file.items()
        }
        document = {"run": self._run, "committed": self.committed, "files": rows}
        write_atomically(self.folder / INDEX, json.dumps(document))

    def _adopt(self) -> None:
        """Know what an earlier keeper of the same run left; delete everything else in the folder."""
        document: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            document = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))
        if document.get("run") == self._run:
            self.committed = document["committed"]
            for file, (step, generation, origin, scale, rows) in document["files"].items():
                pieces = tuple(held_of(row).stored for row in rows)
                whole = Snapshot(file=file, step=step, generation=generation, origin=origin, pieces=pieces, scale=scale)
                self.by_file[file] = sound(self.folder, whole)
        for path in self.folder.glob("*.bin"):
            if path.name not in self.by_file:
                path.unlink()


def hashed(folder: Path, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with the hashes of its pieces, as they lie in the file.

    Raises SpecError where a value is not finite: such a step is not worth keeping.
    """
    if not snapshot.pieces:
        return snapshot
    memory = np.memmap(folder / snapshot.file, mode="r", dtype=np.uint8)
    try:
        pieces = tuple(_hashed(memory, stored) for stored in snapshot.pieces)
    except FloatingPointError as error:
        raise bad(f"step {snapshot.step}", str(error), "the step before it is kept") from None
    return replace(snapshot, pieces=pieces)


def sound(folder: Path, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without the pieces that are damaged: cut off, or of another hash."""
    pieces = tuple(stored for stored in snapshot.pieces if is_sound(folder, stored))
    return replace(snapshot, pieces=pieces)


def is_sound(folder: Path, stored: StoredPiece) -> bool:
    """Return whether a file holds a piece as it was written."""
    try:
        read_piece(folder, stored)
    except SpecError:
        return False
    return True


def laid_out(pieces: Sequence[StatePiece], file: str, dtype: str = "float32") -> tuple[StoredPiece, ...]:
    """Return where pieces lie in a file that has them one after another, their hashes not known yet."""
    stored, offset = [], 0
    for piece in pieces:
        size = piece.elements * DTYPES[dtype].itemsize
        stored.append(StoredPiece(piece=piece, file=file, offset=offset, bytes=size, dtype=dtype, hash=""))
        offset += size
    return tuple(stored)


def reserve(path: Path, size: int) -> None:
    """Make a file of `size` bytes whose memory is there, so that the first copy is as fast as the next.

    Raises OSError where there is not so much.
    """
    with path.open("ab") as file:
        if size:
            os.posix_fallocate(file.fileno(), 0, size)


def _hashed(memory: Values, stored: StoredPiece) -> StoredPiece:
    content = memory[stored.offset : stored.offset + stored.bytes]
    if DTYPES[stored.dtype].kind == "f":
        return stored_piece(stored.piece, content.view(DTYPES[stored.dtype]), stored.file, stored.offset)
    return replace(stored, hash=hash_of(content.data))


def _held(machine: str, snapshot: Snapshot, stored: StoredPiece) -> HeldPiece:
    return HeldPiece(machine=machine, tier=MEMORY, step=snapshot.step, generation=snapshot.generation, stored=stored)


PART = "part.json"


class DiskTier:
    """The newest steps on a machine's disk."""

    def __init__(self, folder: Path, machine: str, run: str) -> None:
        self.folder, self._machine, self._run = folder, machine, run
        self._held: dict[int, tuple[HeldPiece, ...]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("step-*")):
            with suppress(OSError, ValueError, KeyError):
                part = json.loads((path / PART).read_text(encoding="utf-8"))
                if part["run"] == run:
                    self._held[part["step"]] = tuple(held_of(row) for row in part["held"])

    def of_step(self, step: int) -> tuple[HeldPiece, ...]:
        return self._held.get(step, ())

    def holdings(self) -> Iterator[HeldPiece]:
        for held in self._held.values():
            yield from held

    def drop(self, stored: StoredPiece) -> None:
        """Forget a piece that is damaged."""
        self._held = {
            step: tuple(item for item in held if (item.stored.file, item.stored.offset) != (stored.file, stored.offset))
            for step, held in self._held.items()
        }

    def write(self, step: int, memory: Path, held: Sequence[HeldPiece]) -> None:
        """Copy the pieces of a step from memory; the step is there whole or not at all. Raises OSError where the disk
        is full or fails; the steps before stay."""
        working, final = working_folder(self.folder, step), step_folder(self.folder, step)
        shutil.rmtree(working, ignore_errors=True)
        working.mkdir(parents=True)
        name, rows, offset = f"{self._machine}.state", [], 0
        try:
            with (working / name).open("wb") as out:
                for item in held:
                    out.write(read_piece(memory, item.stored).data)
                    where = replace(item.stored, file=f"{final.name}/{name}", offset=offset)
                    rows.append(replace(item, tier=DISK, stored=where))
                    offset += item.stored.bytes
                out.flush()
                os.fsync(out.fileno())
            part = {"run": self._run, "step": step, "held": [held_row(row) for row in rows]}
            write_atomically(working / PART, json.dumps(part))
            shutil.rmtree(final, ignore_errors=True)
            os.replace(working, final)
        except SpecError as error:
            raise OSError(str(error)) from None
        finally:
            shutil.rmtree(working, ignore_errors=True)
        self._held[step] = tuple(rows)

    def keep_newest(self, count: int) -> None:
        """Delete all but so many of the newest steps (0: none)."""
        for step in sorted(self._held)[:-count] if count else ():
            del self._held[step]
            shutil.rmtree(step_folder(self.folder, step), ignore_errors=True)
