"""Writing of files such that a reader sees the old content or the new, never a part; devices and pipes stay.

Tables that ship with the package are read here as well.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from shardwright.errors import bad


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content`, a text as UTF-8, to `path` (`replacing`). A device or a pipe stays what it is and is written to.
    Raises SpecError where the folder is missing or cannot be written, or `path` is a folder."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    if path.is_dir():
        raise bad(str(path), "is a folder, not a file", "name a file inside it")
    try:
        if is_stream(path):
            path.write_bytes(data)
        else:
            with replacing(path) as temporary:
                temporary.write_bytes(data)
    except OSError as error:
        raise bad(str(path), f"cannot be written: {error.strerror or error}", "check the folder") from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give an empty file beside `path`, which takes its place once it is written and on disk; where writing fails, what
    was there stays. The file gets the permissions that `open` would give it, or keeps those it has."""
    import tempfile  # most runs write no file

    target = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.", suffix=".tmp")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(_permissions(target))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Whether `path` is there and neither a file nor a folder: a device, a pipe or a socket."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def shipped_file(package: str, name: str) -> bytes:
    """Return the content of a file in the `data` folder of a package of ours, unpacked where its name ends in .gz."""
    folder = Path(__file__).parent.joinpath(*package.split(".")[1:], "data")
    content = (folder / name).read_bytes()
    if not name.endswith(".gz"):
        return content
    import gzip

    return gzip.decompress(content)


def shipped_table(package: str, name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a CSV table there, by column."""
    columns, *rows = csv.reader(io.StringIO(shipped_file(package, name).decode(), newline=""))
    return tuple(dict(zip(columns, row, strict=True)) for row in rows)


def _permissions(target: Path) -> int:
    """Return the mode bits of an existing file, else what the process's umask leaves of rw-rw-rw-."""
    try:
        return target.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0o077)
        os.umask(mask)
        return 0o666 & ~mask
