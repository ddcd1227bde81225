"""Where `--out` goes: a file, a device, or standard output, told before the work and written after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from shardwright.cli.output import write
from shardwright.errors import bad
from shardwright.files import is_stream, write_atomically

STANDARD_OUTPUT = frozenset({"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"})


def is_standard_output(out: Path | None) -> bool:
    """Whether the user asks for standard output by one of its names."""
    return out is not None and str(out) in STANDARD_OUTPUT


def require_writable(
    out: Path | None, inputs: Iterable[str | Path | None], *, json: bool = False, option: str = "--out"
) -> None:
    """Raise SpecError, before any work, for an output that is a folder, lies in none, is one of the command's own
    inputs, or would share standard output with the document of `--json`."""
    if out is None:
        return
    if is_standard_output(out):
        if json:
            raise bad(f"{option} {out}", "--json writes to standard output too", f"name a file, or leave {option} out")
        return
    if out.is_dir():
        raise bad(f"{option} {out}", "is a folder, not a file", "name a file inside it")
    if not out.resolve().parent.is_dir():
        raise bad(f"{option} {out}", "lies in a folder that does not exist", f"make {out.parent} first")
    if not is_stream(out) and any(source is not None and _same(out, source) for source in inputs):
        raise bad(f"{option} {out}", "is an input of this command", "name another file")


def deliver(text: str, out: Path | None) -> None:
    """Write `text` to a file, a device or standard output (`out` None or -), and say on standard error which file it
    replaces."""
    if out is None or is_standard_output(out):
        write(text)
        return
    replaced = out.is_file()
    write_atomically(out, text)
    if replaced and sys.stderr is not None:
        print(f"{out}: overwritten", file=sys.stderr)


def deliver_all(texts: Mapping[str, str], folder: Path) -> None:
    """Write files by name into a folder, which is made if it is missing. Raises SpecError where it is a file."""
    if is_standard_output(folder) or (folder.exists() and not folder.is_dir()):
        raise bad(f"--out {folder}", f"is no folder; this target has {len(texts)} files", "name a folder for them")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        deliver(text, folder / name)


def tell(report: str, *, beside: Path | None) -> None:
    """Write a report on standard output, or on standard error where the file has standard output."""
    if not is_standard_output(beside):
        write(report)
    elif sys.stderr is not None:
        print(report, file=sys.stderr)


def _same(out: Path, source: str | Path) -> bool:
    try:
        return os.path.samefile(out, source)
    except (OSError, ValueError):
        return False
