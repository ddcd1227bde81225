"""What a first screen and the files of an export say to type next, typed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from tests.cli.running import Outcome, run

READ_BACK = "# shardwright evaluate --launch "


def next_command(out: str) -> list[str]:
    """Return the words of the command that a first screen names as the next, without `shardwright`, none where it names
    nobody."""
    after = out[out.index("\n  next ") :].split("\n  more ")[0]
    return [] if "`" in after else shlex.split(after.rpartition("shardwright ")[2])


def without_data(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command without the data that it names, which are not there where nobody made them."""
    return tuple(word for before, word in pairwise(("", *words)) if "--data" not in (before, word))


def followed(out: str, folder: Path) -> Iterator[tuple[list[str], Outcome]]:
    """Yield each command that follows from a first screen, with what it answers in a folder: the next one, and where
    that exports, those that read its files back."""
    words, before = next_command(out), Path.cwd()
    try:
        os.chdir(folder)
        yield words, run([*without_data(words), "--dry-run"] if words[0] == "train" else words)
        if words[0] == "export":
            place = Path(words[words.index("-o") + 1])
            os.chdir(place if place.is_dir() else place.parent)
            for back in _read_back(Path.cwd()):
                yield back, run(back)
    finally:
        os.chdir(before)


def _read_back(folder: Path) -> Iterator[list[str]]:
    """Yield the commands that the files of an export give for reading them back."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith(READ_BACK):
                yield shlex.split(line.removeprefix("# shardwright "))
