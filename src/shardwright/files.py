"""Writing of files such that a reader sees the old content or the new, never a part; devices and pipes stay.

Tables that ship with the package are read here as well.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import stat
from pathlib import Path

from shardwright.errors import bad


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content`, a text as UTF-8, to a temporary file beside `path`, then rename it to `path`.

    The file gets the permissions that `open` would give it, or keeps those it has. A device or a pipe stays what it is
    and is written to. Raises SpecError where the folder is missing or cannot be written, or `path` is a folder.
    """
    import tempfile  # most runs write no file

    data = content.encode("utf-8") if isinstance(content, str) else content
    target = path.resolve()
    if target.is_dir():
        raise bad(str(path), "is a folder, not a file", "name a file inside it")
    temporary = ""
    try:
        if is_stream(path):
            path.write_bytes(data)
            return
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _permissions(target))
        os.replace(temporary, target)
    except OSError as error:
        raise bad(str(path), f"cannot be written: {error.strerror or error}", "check the folder") from None
    finally:
        if temporary:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


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
