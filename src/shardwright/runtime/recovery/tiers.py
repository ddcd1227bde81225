"""The slower tiers: this machine's disk, and the object store that all machines reach. No PyTorch.

Either has the format of checkpoints (`storage.manifest`), a step in a folder of its own. On disk a machine has its own
part of a step; in the object store all machines have put theirs before the manifest comes, and a step without a
manifest is none.
"""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from hashlib import md5
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from shardwright.errors import SpecError, bad
from shardwright.files import write_atomically
from shardwright.recovery.transfer import CLOUD, DISK
from shardwright.runtime.recovery.inventory import Held, held_of, held_row
from shardwright.runtime.state.pieces import StoredPiece
from shardwright.runtime.storage.manifest import (
    MANIFEST,
    Manifest,
    manifest_text,
    parse_manifest,
    step_folder,
    working_folder,
)
from shardwright.runtime.storage.piece_files import read_piece

Given = ParamSpec("Given")
Result = TypeVar("Result")
Payload = bytes | bytearray | memoryview
PART_BYTES = 50 << 20
"""s3fs sends files in parts of this size."""
PART = "part.json"
KEPT_STEPS = 2


class DiskTier:
    """The steps on a machine's disk, newest two."""

    def __init__(self, folder: Path, machine: str, run: str) -> None:
        self.folder, self._machine, self._run = folder, machine, run
        self._held: dict[int, tuple[Held, ...]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("step-*")):
            with suppress(OSError, ValueError, KeyError):
                part = json.loads((path / PART).read_text(encoding="utf-8"))
                if part["run"] == run:
                    self._held[part["step"]] = tuple(held_of(row) for row in part["held"])

    def holdings(self) -> Iterator[Held]:
        """Yield every piece on disk."""
        for held in self._held.values():
            yield from held

    def drop(self, stored: StoredPiece) -> None:
        """Forget a piece that is damaged."""
        self._held = {
            step: tuple(item for item in held if (item.stored.file, item.stored.offset) != (stored.file, stored.offset))
            for step, held in self._held.items()
        }

    def write(self, step: int, memory: Path, held: Sequence[Held]) -> None:
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

    def keep_newest(self) -> None:
        """Delete all but the newest steps."""
        for step in sorted(self._held)[:-KEPT_STEPS]:
            del self._held[step]
            shutil.rmtree(step_folder(self.folder, step), ignore_errors=True)


def _told_as_oserror(call: Callable[Given, Result]) -> Callable[Given, Result]:
    """Have a call raise OSError whatever an object store raises: each has exceptions of its own."""

    @wraps(call)
    def told(*arguments: Given.args, **options: Given.kwargs) -> Result:
        try:
            return call(*arguments, **options)
        except (OSError, SpecError):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from None

    return told


class Cloud:
    """The steps under a URL that fsspec understands. All calls block, and raise OSError where the store fails."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise bad(f"upload={url}", "object stores need fsspec", "pip install 'shardwright[runtime]'") from None
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise bad(f"upload={url}", str(error), "see fsspec's documentation for its URLs") from None

    @_told_as_oserror
    def put(self, name: str, content: Payload) -> None:
        """Write a file whole. Raises OSError where the store keeps it otherwise than it was written: stores have been
        seen to cut uploads off and say nothing. A store that says the MD5 of what it keeps is asked for that; from
        others, and where it is another, the file is read back."""
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(path, content)
        said = _said(self._files.info(path))
        if not (said and checksum(content, said) == said) and not self._reads_back(path, content):
            raise OSError(f"{name} does not read back as it was written")

    def _reads_back(self, path: str, content: Payload) -> bool:
        """Return whether a file is what was written."""
        view, step = memoryview(content), PART_BYTES
        starts = range(0, len(view) + 1, step)  # a byte more than there should be
        return all(self._files.cat_file(path, start=at, end=at + step) == view[at : at + step] for at in starts)

    @_told_as_oserror
    def claim(self, run: str, number: int, content: str) -> str:
        """Claim to follow a generation of a run, and return the claim that stands: this one, or the first."""
        path = f"{self._root}/{_claim_name(run, f'{number:06d}')}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            self._files.pipe_file(path, content.encode(), mode="create")
        except FileExistsError:
            return self.claimed(run, number)
        return content

    @_told_as_oserror
    def claimed(self, run: str, number: int) -> str:
        """Return the claim to follow a generation."""
        return str(self._files.cat_file(f"{self._root}/{_claim_name(run, f'{number:06d}')}").decode())

    @_told_as_oserror
    def claims(self, run: str) -> list[int]:
        """Return the numbers of the generations of a run that were claimed to be followed, in order."""
        try:
            found = self._files.glob(f"{self._root}/{_claim_name(run, '*')}")
        except FileNotFoundError:
            return []
        return sorted(int(path.removesuffix(".json").rpartition("-")[2]) for path in found)

    def put_part(
        self, step: int, generation: int, machine: str, memory: Path, held: Sequence[Held]
    ) -> tuple[StoredPiece, ...]:
        """Upload a machine's part of a step of a generation, and return its pieces as they lie there. Raises as
        `put`."""
        content, pieces, file = bytearray(), [], f"{generation:06d}-{machine}.state"
        for item in held:
            pieces.append(replace(item.stored, file=file, offset=len(content)))
            content += read_piece(memory, item.stored).data
        if content:
            self.put(f"{_folder_name(step)}/{file}", content)
        return tuple(pieces)

    @_told_as_oserror
    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of a file."""
        content: bytes = self._files.cat_file(f"{self._root}/{name}", start=start, end=stop)
        return content

    @_told_as_oserror
    def steps(self) -> list[int]:
        """Return the steps that have a manifest, oldest first."""
        try:
            found = self._files.glob(f"{self._root}/step-*/{MANIFEST}")
        except FileNotFoundError:
            return []
        return sorted(int(path.split("/")[-2].removeprefix("step-")) for path in found)

    @_told_as_oserror
    def manifest(self, step: int) -> Manifest:
        """Return the manifest of a step. Raises SpecError where it was changed."""
        name = f"{_folder_name(step)}/{MANIFEST}"
        return parse_manifest(self._files.cat_file(f"{self._root}/{name}").decode(), name)

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest of a step, all files of which are there. Raises as `put`."""
        self.put(f"{_folder_name(manifest.step)}/{MANIFEST}", manifest_text(manifest).encode())

    def held(self, model: str) -> Iterator[Held]:
        """Yield the pieces of all steps of a model, as far as their manifests are whole."""
        for step in self.steps():
            try:
                manifest = self.manifest(step)
            except (SpecError, OSError, ValueError):
                continue
            if manifest.model == model:
                for stored in manifest.pieces:
                    where = replace(stored, file=f"{_folder_name(step)}/{stored.file}")
                    yield Held(machine="", tier=CLOUD, step=step, generation=0, stored=where)

    @_told_as_oserror
    def keep_newest(self, number: int = KEPT_STEPS) -> None:
        """Delete all but the newest steps, the manifest first."""
        for step in self.steps()[:-number]:
            folder = f"{self._root}/{_folder_name(step)}"
            self._files.rm_file(f"{folder}/{MANIFEST}")
            self._files.rm(folder, recursive=True)


def _folder_name(step: int) -> str:
    return f"step-{step:08d}"


def _claim_name(run: str, number: str) -> str:
    return f"generations/{run}-after-{number}.json"


def checksum(content: Payload, like: str = "") -> str:
    """Return what a store says of a content in hexadecimal digits: its MD5 or, as S3 does of what s3fs sends it in
    parts, the MD5 of the parts' MD5s and their number, if that is what it is to be `like`."""
    if "-" not in like:
        return _md5(content).hex()
    view = memoryview(content)
    parts = [_md5(view[at : at + PART_BYTES]) for at in range(0, len(view), PART_BYTES)]
    return f"{_md5(b''.join(parts)).hex()}-{len(parts)}"


def _said(info: Mapping[str, Any]) -> str:
    """Return the checksum in fsspec's description of a file, S3's entity tag or Google's MD5, "" if it has none."""
    if "ETag" in info:
        return str(info["ETag"]).strip('"').lower()
    return b64decode(info.get("md5Hash", "")).hex()


def _md5(content: Payload) -> bytes:
    return md5(content, usedforsecurity=False).digest()
