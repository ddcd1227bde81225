"""A machine's disk: the slower tier that is its own, with its part of a step in a folder of its own. No PyTorch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from shardwright.errors import SpecError
from shardwright.files import write_atomically
from shardwright.recovery.transfer import DISK
from shardwright.runtime.recovery.inventory import HeldPiece, held_of, held_row
from shardwright.runtime.state.pieces import StoredPiece
from shardwright.runtime.storage.manifest import step_folder, working_folder
from shardwright.runtime.storage.piece_files import read_piece

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
        """Return the pieces of a step."""
        return self._held.get(step, ())

    def holdings(self) -> Iterator[HeldPiece]:
        """Yield every piece on disk."""
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
