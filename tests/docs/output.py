"""Blocks of the documentation that show what a command prints: `python -m tests.docs.output` writes them anew.

A comment on the line before a block says which command it is of, `<!-- output of: shardwright plan … -->`; readers do
not see it. Times that a search took differ from run to run and are not compared.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.cli.running import run

ROOT = Path(__file__).parents[2]
PAGES = tuple(sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]))
BLOCK = re.compile(
    r"(<!-- output of: shardwright (?P<command>[^\n]*) -->\n+```[a-z]*\n)(?P<text>.*?)(?=```\n)", re.DOTALL
)
TIMES = (
    (re.compile(r"candidates\s+in\s+\S+\s+m?s\s+\([^)]*\)"), "candidates in … s (… a second)"),
    (re.compile(r"phases in ms:.*?(?=\n\n|\Z)", re.DOTALL), "phases in ms: …"),
)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page: the arguments of its command, and the text that the page shows."""

    arguments: tuple[str, ...]
    text: str


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page with the output of a command."""
    return [Block(tuple(shlex.split(found["command"])), found["text"]) for found in BLOCK.finditer(page)]


def printed(block: Block) -> str:
    """Return what the command of a block prints."""
    found = run(block.arguments)
    assert found.code == 0, found.err
    return found.out.rstrip("\n") + "\n"


def masked(text: str) -> str:
    """Return a text without the times that differ from run to run."""
    for pattern, words in TIMES:
        text = pattern.sub(words, text)
    return text


def rewritten(page: str) -> str:
    """Return a page with the outputs of its blocks as they are now, but for the times, which stay."""
    for block in blocks(page):
        now = printed(block)
        for pattern, _ in TIMES:
            if kept := pattern.search(block.text):
                now = pattern.sub(lambda _, words=kept[0]: words, now)  # type: ignore[misc]
        page = page.replace(block.text, now)
    return page


def main() -> None:
    """Write the outputs in all pages anew."""
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = rewritten(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: rewritten")


if __name__ == "__main__":
    main()
