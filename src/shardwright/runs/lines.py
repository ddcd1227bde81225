"""Lines of a log of any length, in bounded memory."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shardwright.progress import tell

BLOCK = 1 << 20
LONGEST = 1 << 16  # bytes of a line that are looked at: what is longer is no line of a step


def lines_of(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield (number, text, whole) of every line of a file, unpacked where its name ends in .gz. A progress bar draws
    over itself after carriage returns: each drawing is a line of the same number. `whole` is False for a last line
    that does not end, as of a job that was killed."""
    size, done = max(path.stat().st_size, 1), 0
    with _opened(path) as file:
        number, rest = 1, b""
        while block := file.read(BLOCK):
            done += len(block)
            tell(done / size)
            *ended, rest = (rest + block).split(b"\n")
            for line in ended:
                yield from _drawings(number, line, whole=True)
                number += 1
            if len(rest) > LONGEST:
                before, _, rest = rest.rpartition(b"\r")
                yield from _drawings(number, before, whole=True)
                rest = rest[:LONGEST]
        if rest:
            yield from _drawings(number, rest, whole=False)


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _drawings(number: int, line: bytes, *, whole: bool) -> Iterator[tuple[int, str, bool]]:
    if b"\r" not in line:
        yield number, line[:LONGEST].decode("utf-8", "replace"), whole
        return
    parts = [part for part in line.split(b"\r") if part]
    for part in parts:
        yield number, part[:LONGEST].decode("utf-8", "replace"), whole or part is not parts[-1]
