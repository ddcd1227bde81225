"""Blocks of the documentation that show what a command prints: `python -m tests.docs.output` writes them anew.

A comment on the line before a block says which command it is of, `<!-- output of: shardwright plan … -->`; readers do
not see it. With `| head -n 5` the block shows the first five lines and an ellipsis. Times that a search took, and all
figures and the number of steps shown of a training run, differ from run to run: they are not compared.

Most blocks stand alone. A page of `SESSIONS` is worked through from top to bottom in one folder, as a reader does who
copies its `sh` blocks into a clone.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cli.running import succeeded
from tests.support.following import without_data

ROOT = Path(__file__).parents[2]
SESSIONS = (ROOT / "README.md", ROOT / "docs" / "tutorial.md")
PAGES = tuple(sorted({*SESSIONS, *(ROOT / "docs").rglob("*.md")}))
BLOCK = re.compile(
    r"<!-- output of: shardwright (?P<command>[^\n|]*?)(?: \| head -n (?P<lines>\d+))? -->\n+```[a-z]*\n"
    r"(?P<text>.*?)(?=```\n)",
    re.DOTALL,
)
SCRIPT = re.compile(r"^```sh\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
TIMES = (
    (re.compile(r"candidates\s+in\s+\S+\s+m?s\s+\([^)]*\)"), "candidates in … s (… a second)"),
    (re.compile(r"phases in ms:.*?(?=\n\n|\Z)", re.DOTALL), "phases in ms: …"),
)
RUN = re.compile(r"(?:^step \d+/(\d+) [^\n]*\n)+(.*)", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"\s*\S*\d\S*(?: (?:[µm]?s|[KMG]iB)\b)?")

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page: the arguments of its command, how many lines of its output are shown (None: all), and the
    text that the page shows."""

    arguments: Words
    lines: int | None
    text: str

    def cut(self, output: str) -> str:
        """Return as much of an output as the block shows."""
        kept = output.rstrip("\n").splitlines()
        return "\n".join(kept if self.lines is None else [*kept[: self.lines], "…"]) + "\n"


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page with the output of a command."""
    return [_block(match) for match in BLOCK.finditer(page)]


def _block(match: re.Match[str]) -> Block:
    lines = int(match["lines"]) if match["lines"] else None
    return Block(tuple(shlex.split(match["command"])), lines, match["text"])


def commands(page: str) -> list[Words]:
    """Return the command lines of a page's `sh` blocks, in words."""
    lines = "".join(SCRIPT.findall(page)).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := tuple(shlex.split(line, comments=True)))]


def printed(arguments: Words) -> str:
    """Return what `shardwright` prints."""
    outcome = succeeded(arguments)
    return outcome.out


def worked_through(page: str, folder: Path, *, trains: bool) -> Mapping[Words, str]:
    """Return what each `shardwright` command of a page prints, run in order in `folder`, which gets the examples of a
    clone. Without `trains` nothing is trained: `train` shows what it would do, and its data are not made."""
    (folder / "examples").symlink_to(ROOT / "examples")
    shown = {}
    with contextlib.chdir(folder):
        for program, *arguments in commands(page):
            if program == "shardwright" and (arguments[0] != "train" or "--dry-run" in arguments):
                shown[tuple(arguments)] = printed(tuple(arguments) if trains else without_data(arguments))
            elif trains:
                start = ["-m", "shardwright"] if program == "shardwright" else []
                shown[tuple(arguments)] = _merged([sys.executable, *start, *arguments])
            elif program == "shardwright":
                printed((*without_data(arguments), "--dry-run"))
    return shown


def _merged(command: list[str]) -> str:
    """Return what a process writes to both streams, as a terminal shows it."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout)
    return done.stdout


def masked(text: str) -> str:
    """Return a text without the figures that differ from run to run."""
    for pattern, words in TIMES:
        text = pattern.sub(words, text)
    return RUN.sub(lambda match: f"steps to {match[1]}\n" + FIGURE.sub(" …", match[2]), text)


def rewritten(page: str, answer: Callable[[Words], str] = printed) -> str:
    """Return a page with the outputs of its blocks as they are now; what differs by masked figures alone stays."""

    def anew(match: re.Match[str]) -> str:
        block = _block(match)
        now = block.cut(answer(block.arguments))
        return match[0] if masked(now) == masked(block.text) else match[0].removesuffix(block.text) + now

    return BLOCK.sub(anew, page)


def main() -> None:
    """Write the outputs in all pages anew."""
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        answer: Callable[[Words], str] = printed
        if path in SESSIONS:
            with tempfile.TemporaryDirectory() as folder:
                answer = worked_through(before, Path(folder), trains=True).__getitem__
        after = rewritten(before, answer)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: rewritten")


if __name__ == "__main__":
    main()
