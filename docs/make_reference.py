"""Writes docs/reference: the help of every command, and the public names of the library with their docstrings.

.venv/bin/python docs/make_reference.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

import shardwright
from shardwright.cli.app import app
from shardwright.files import write_atomically

FOLDER = Path(__file__).with_name("reference")
NOTE = "<!-- Written by docs/make_reference.py -->\n\n"


def main() -> None:
    """Write both pages."""
    FOLDER.mkdir(exist_ok=True)
    write_atomically(FOLDER / "cli.md", command_line())
    write_atomically(FOLDER / "library.md", library())


def command_line() -> str:
    """Return the page of the command line: what `--help` prints, at 100 columns."""
    runner = CliRunner(env={"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"})
    names = sorted(app.homes)
    parts = [NOTE, "# Command line\n"]
    for words in ([], *([name] for name in names)):
        title = " ".join(["shardwright", *words])
        shown = runner.invoke(app, [*words, "--help"], prog_name="shardwright").stdout
        parts.append(f"\n## {title}\n\n```text\n{shown.strip()}\n```\n")
    return "".join(parts)


def library() -> str:
    """Return the page of the library: signature and docstring of every public name."""
    parts = [NOTE, "# Library\n"]
    for name in sorted(shardwright.__all__):
        found = getattr(shardwright, name)
        if not callable(found):
            continue
        doc = inspect.getdoc(found) or ""
        if inspect.isclass(found):
            fields = "\n".join(f"    {field}: {kind}" for field, kind in found.__annotations__.items())
            parts.append(f"\n## {name}\n\n```python\nclass {name}:\n{fields}\n```\n\n{doc}\n")
        else:
            parts.append(f"\n## {name}\n\n```python\n{name}{_signature(found)}\n```\n\n{doc}\n")
    return "".join(parts)


def _signature(function: Callable[..., object]) -> str:
    """Return the signature, without the address of a default that is a function."""
    return re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", str(inspect.signature(function)))


if __name__ == "__main__":
    main()
