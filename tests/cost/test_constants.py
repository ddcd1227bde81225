"""Every constant of the cost model says where it is from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import shardwright.cost

FOLDER = Path(shardwright.cost.__file__).parent
# Measured or fitted (by whom, the comment says), from a data sheet, documented (a paper, a program's source, or counted
# from the operations), chosen by judgment; numeric ones change no prediction.
ORIGINS = re.compile(r"\b(measured|fitted|datasheet|documented|chosen|numeric)\b", re.IGNORECASE)


def constants(path: Path) -> Iterator[tuple[str, int]]:
    """Yield name and line of every public number, or table of numbers, that a module assigns."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign) or (
            isinstance(node.value, ast.Call) and "range" in ast.dump(node.value.func)
        ):
            continue
        numbers = [
            item for item in ast.walk(node.value) if isinstance(item, ast.Constant) and type(item.value) in (int, float)
        ]
        names = [item.id for item in ast.walk(node.targets[0]) if isinstance(item, ast.Name)]
        if numbers and names[0].isupper() and not names[0].startswith("_"):
            yield names[0], node.lineno - 1


def comment(lines: list[str], at: int) -> str:
    """Return the comment on a line and those right above it."""
    words = [lines[at].partition("#")[2]]
    while at and lines[at - 1].startswith("#"):
        at -= 1
        words.append(lines[at])
    return " ".join(words)


def test_every_constant_says_where_it_is_from():
    silent, seen = [], 0
    for path in sorted(FOLDER.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for name, at in constants(path):
            seen += 1
            if not ORIGINS.search(comment(lines, at)):
                silent.append(f"{path.relative_to(FOLDER)}:{at + 1} {name}")
    assert silent == [] and seen > 50
