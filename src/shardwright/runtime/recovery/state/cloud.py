"""The object store that all machines reach, and the steps that a coordinator commits in it. No PyTorch.

It has the format of checkpoints (`storage.manifest`), a step in a folder of its own: all machines have put their parts
before the manifest comes, and a step without a manifest is none. A part is sent in blocks, and what is kept is checked
against them: however large it is, a few blocks are in memory, as fsspec's file and its client have copies of one."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import uuid
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial, wraps
from hashlib import md5
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from shardwright.errors import SpecError, bad
from shardwright.records import record
from shardwright.recovery.transfer import CLOUD
from shardwright.runtime.job.course import RunIdentity
from shardwright.runtime.recovery.run import KeeperOptions
from shardwright.runtime.recovery.state.inventory import HeldPiece, cover, pieces_of
from shardwright.runtime.recovery.wire import BackgroundTasks, Message, answered
from shardwright.runtime.state.pieces import StoredPiece
from shardwright.runtime.storage.manifest import MANIFEST, Manifest, manifest_text, parse_manifest, read_piece

Given = ParamSpec("Given")
Result = TypeVar("Result")
Content = bytes | bytearray | memoryview
# Gives a content from its beginning, in blocks of `BLOCK_BYTES`; the last may be smaller.
Blocks = Callable[[], Iterable[Content]]
LOCAL = "fsspec.implementations.local.LocalFileSystem"
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
BLOCK_BYTES = 50 << 20  # stores take files in parts of this size


# Classes whose `pipe_file` leaves it to the store whether a file is new. What fsspec gives all others looks whether it
# exists, and then writes: of two that do so at once, both are first. One that knows better says `exclusive_create`.
ATOMIC = ("s3fs.core.S3FileSystem", "gcsfs.core.GCSFileSystem", "adlfs.spec.AzureBlobFileSystem")


def no_progress() -> None:
    """Take no note of progress."""


def _as_oserror(call: Callable[Given, Result]) -> Callable[Given, Result]:
    """Have a call raise OSError whatever an object store raises: each has exceptions of its own."""

    @wraps(call)
    def wrapped(*arguments: Given.args, **options: Given.kwargs) -> Result:
        try:
            return call(*arguments, **options)
        except (OSError, SpecError):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from None

    return wrapped


class Cloud:
    """The steps under a URL that fsspec understands. All calls block, for ever where the store never answers
    (`wire.answered`), and raise OSError where it fails."""

    what = "the object store"

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise bad(f"upload={url}", "object stores need fsspec", "pip install 'shardwright[runtime]'") from None
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise bad(f"upload={url}", str(error), "see fsspec's documentation for its URLs") from None

    @_as_oserror
    def put(self, name: str, blocks: Blocks, progress: Callable[[], None] = no_progress) -> None:
        """Write a file, telling `progress` of every block. Raises OSError where the store keeps it otherwise than it
        was written: stores have been seen to cut uploads off and say nothing. A store that says the MD5 of what it
        keeps is asked for that; from others, and where it is another, the file is read back. What came of a file that
        was not sent whole goes."""
        path = f"{self._root}/{name}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            with self._files.open(path, "wb", block_size=BLOCK_BYTES) as file:
                for block in told(blocks(), progress):
                    file.write(block)
        except BaseException:
            with suppress(Exception):
                self._files.rm_file(path)
            raise
        said = _said(self._files.info(path))
        if said and checksum(told(blocks(), progress), said) == said:
            return
        if not self._reads_back(path, told(blocks(), progress)):
            raise OSError(f"{name} does not read back as it was written")

    def _reads_back(self, path: str, blocks: Iterable[Content]) -> bool:
        """Return whether a file is what was written."""
        at = 0
        for block in blocks:
            if self._files.cat_file(path, start=at, end=at + len(block)) != block:
                return False
            at += len(block)
        return bool(self._files.info(path)["size"] == at)

    @_as_oserror
    def claim(self, run: str, number: int, content: str) -> str:
        """Claim to follow a generation of a run, and return the claim that stands: this one, or the first."""
        path = f"{self._root}/{_claim_name(run, f'{number:06d}')}"
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            if self._local:
                _create(Path(path), content)
            elif self.settles_claims:
                self._files.pipe_file(path, content.encode(), mode="create")
            else:
                raise OSError(f"{type(self._files).__name__} cannot tell which of two claims came first")
        except FileExistsError:
            return self.claimed(run, number)
        return content

    @property
    def settles_claims(self) -> bool:
        """Whether of two that claim at once one alone can be first."""
        kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(self._files).__mro__}
        create = getattr(self._files, "_pipe_file", None)
        by_name = bool(kinds.intersection(ATOMIC)) and "mode" in signature(create).parameters if create else False
        return self._local or by_name or bool(getattr(self._files, "exclusive_create", False))

    @property
    def _local(self) -> bool:
        return LOCAL in {f"{kind.__module__}.{kind.__qualname__}" for kind in type(self._files).__mro__}

    @_as_oserror
    def claimed(self, run: str, number: int) -> str:
        return str(self._files.cat_file(f"{self._root}/{_claim_name(run, f'{number:06d}')}").decode())

    @_as_oserror
    def claims(self, run: str) -> list[int]:
        """Return the numbers of the generations of a run that were claimed to be followed, in order."""
        paths = self._paths(_claim_name(run, "*"))
        return sorted(int(path.removesuffix(".json").rpartition("-")[2]) for path in paths)

    def put_part(
        self, name: str, folder: Path, held: Sequence[HeldPiece], progress: Callable[[], None] = no_progress
    ) -> tuple[StoredPiece, ...]:
        """Upload a machine's part of a step from its files in a folder, and return its pieces as they lie there. Raises
        as `put`."""
        pieces, offset = [], 0
        for item in held:
            pieces.append(replace(item.stored, file=name.rpartition("/")[2], offset=offset))
            offset += item.stored.bytes
        if held:
            self.put(name, lambda: in_blocks(read_piece(folder, item.stored).data for item in held), progress)
        return tuple(pieces)

    @_as_oserror
    def read(self, name: str, start: int, stop: int) -> bytes:
        content: bytes = self._files.cat_file(f"{self._root}/{name}", start=start, end=stop)
        return content

    @_as_oserror
    def steps(self) -> list[int]:
        """Return the steps that have a manifest, oldest first."""
        paths = self._paths(f"step-*/{MANIFEST}")
        return sorted(int(path.split("/")[-2].removeprefix("step-")) for path in paths)

    def _paths(self, pattern: str) -> list[str]:
        """Return the paths of a pattern, none where there is no folder for them."""
        try:
            return list(self._files.glob(f"{self._root}/{pattern}"))
        except FileNotFoundError:
            return []

    @_as_oserror
    def manifest(self, step: int) -> Manifest:
        """Return the manifest of a step. Raises SpecError where it was changed."""
        name = f"{_folder_name(step)}/{MANIFEST}"
        return parse_manifest(self._files.cat_file(f"{self._root}/{name}").decode(), name)

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest of a step, all files of which are there. Raises as `put`."""
        text = manifest_text(manifest).encode()
        self.put(f"{_folder_name(manifest.step)}/{MANIFEST}", partial(in_blocks, [text]))

    def held(self, require: Callable[[Manifest], None]) -> list[HeldPiece]:
        """Return the pieces of all steps whose manifests are whole. Raises SpecError where `require` does of one, as it
        is of another run."""
        pieces = []
        for step in self.steps():
            try:
                manifest = self.manifest(step)
            except (SpecError, OSError, ValueError):
                continue
            require(manifest)
            for stored in manifest.pieces:
                where = replace(stored, file=f"{_folder_name(step)}/{stored.file}")
                pieces.append(HeldPiece(machine="", tier=CLOUD, step=step, generation=0, stored=where))
        return pieces

    @_as_oserror
    def keep_newest(self, count: int) -> None:
        """Delete all but so many of the newest steps (0: none), the manifest first."""
        for step in self.steps()[:-count] if count else ():
            folder = f"{self._root}/{_folder_name(step)}"
            self._files.rm_file(f"{folder}/{MANIFEST}")
            self._files.rm(folder, recursive=True)


def require_claims(url: str) -> None:
    """Raise SpecError where the store at a URL cannot settle which of two groups of machines goes on."""
    if not Cloud(url).settles_claims:
        message = "this kind of store cannot tell which of two groups of machines claimed first to go on"
        raise bad(f"`upload={url}`", message, "name an etcd that can (`etcd=HOST:PORT`), or a folder, S3, GCS or Azure")


def _create(path: Path, content: str) -> None:
    """Write a file whole, or raise FileExistsError where any machine has: a link is made by one alone,
    on NFS too. Where the folder takes no links, a claim that is read while it is written is none yet."""
    working = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        working.write_text(content, encoding="utf-8")
        try:
            os.link(working, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as file:
                file.write(content)
    finally:
        working.unlink(missing_ok=True)


def _folder_name(step: int) -> str:
    return f"step-{step:08d}"


def _claim_name(run: str, number: str) -> str:
    return f"generations/{run}-after-{number}.json"


def part_name(step: int, generation: int, machine: str, *, whole: bool) -> str:
    """Return where a machine puts its share of what it wrote of a step in a generation, or the `whole` of it. Nothing
    is put twice in one place: what failed the second time would have been of use before."""
    return f"{_folder_name(step)}/{generation:06d}-{machine}{'-whole' if whole else ''}.state"


def in_blocks(contents: Iterable[Content]) -> Iterator[Content]:
    """Yield contents one after another, in blocks."""
    rest = bytearray()
    for content in contents:
        rest += content
        while len(rest) >= BLOCK_BYTES:
            yield rest[:BLOCK_BYTES]
            del rest[:BLOCK_BYTES]
    if rest:
        yield rest


def told(blocks: Iterable[Content], progress: Callable[[], None]) -> Iterator[Content]:
    """Yield blocks, with a word after each that has been dealt with."""
    for block in blocks:
        yield block
        progress()


def checksum(blocks: Iterable[Content], like: str = "") -> str:
    """Return what a store says of a content in hexadecimal digits: its MD5 or, as S3 does of what comes in parts, the
    MD5 of the parts' MD5s and their number, if that is what it is to be `like`."""
    if "-" in like:
        parts = [_md5([block]) for block in blocks]
        return f"{_md5(parts).hex()}-{len(parts)}"
    return _md5(blocks).hex()


def _said(info: Mapping[str, Any]) -> str:
    """Return the checksum in fsspec's description of a file, S3's entity tag or Google's MD5, "" if it has none."""
    if "ETag" in info:
        return str(info["ETag"]).strip('"').lower()
    return b64decode(info.get("md5Hash", "")).hex()


def _md5(contents: Iterable[Content]) -> bytes:
    hashing = md5(usedforsecurity=False)
    for content in contents:
        hashing.update(content)
    return hashing.digest()


@record
class Uploads:
    """The parts of steps that have come, by step and the generation that wrote it, and machine; and the manifests that
    are being written."""

    options: KeeperOptions
    run: RunIdentity
    cloud: Cloud
    parts: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    background: BackgroundTasks = field(default_factory=lambda: BackgroundTasks(what="the object store"))

    def take(self, name: str, message: Message, machines: Collection[str]) -> None:
        """Note that a machine has put its part of a step; when all have, the step is one."""
        step, generation = message["step"], message["of_generation"]
        parts = self.parts.setdefault((step, generation), {})
        parts[name] = message["rows"]
        if parts.keys() >= set(machines):
            for old in [key for key in self.parts if key[0] <= step]:
                del self.parts[old]
            rows = [row for part in parts.values() for row in part]
            self.background.begin(self._commit(step, rows, message["scale"]))

    async def _commit(self, step: int, rows: Sequence[Any], scale: Any) -> None:
        manifest = await asyncio.to_thread(self._manifest, step, rows, scale)
        if manifest is None:
            print(f"step {step} in the object store is not whole, and is not committed", file=sys.stderr, flush=True)
            return
        await answered(self.cloud.what, partial(self.cloud.commit, manifest))
        await answered(self.cloud.what, partial(self.cloud.keep_newest, self.options.settings.keep))

    def _manifest(self, step: int, rows: Sequence[Any], scale: Any) -> Manifest | None:
        """Return the manifest of a step of these pieces, None where they are not all of it."""
        held = [HeldPiece(machine="", tier=CLOUD, step=step, generation=0, stored=stored) for stored in pieces_of(rows)]
        pieces = cover(held, self.run.shapes, self.run.kinds)
        if pieces is None:
            return None
        course = self.run.course
        return Manifest(
            step=step,
            model=self.run.model,
            settings=course.settings,
            data={**course.data, "samples": self.run.origin + step * self.options.plan.job.global_batch},
            random=course.random,
            loss_scale=scale,
            parameters=self.run.shapes,
            pieces=tuple(items[0].stored for items in pieces.values()),
        )
