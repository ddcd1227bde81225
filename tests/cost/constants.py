"""The constants of the cost model, with what the comments beside them say of where they are from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import shardwright.cost

FOLDER = Path(shardwright.cost.__file__).parent
# Measured or fitted (by whom, the comment says), from a data sheet, documented (a paper, a program's source, or counted
# from the operations), chosen by judgment; numeric ones change no prediction.
ORIGINS = re.compile(r"\b(measured|fitted|datasheet|documented|chosen|numeric)\b", re.IGNORECASE)
RANGE = re.compile(r"\bchosen, ([\d.e-]+) to ([\d.e-]+)( times)?", re.IGNORECASE)
REASON = re.compile(r"\bchosen: \w", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A public number, or table of numbers, that a module (`network.collectives`) assigns in a `line`."""

    module: str
    name: str
    line: int
    comment: str

    @property
    def origin(self) -> str:
        """Where it is from, in a word; none where the comment does not say."""
        found = ORIGINS.search(self.comment)
        return found[0].lower() if found else ""

    @property
    def limits(self) -> tuple[float, float, bool] | None:
        """Between what a chosen one may lie, and whether these are multiples of it."""
        found = RANGE.search(self.comment)
        return None if found is None else (float(found[1]), float(found[2].rstrip(".")), bool(found[3]))


def constants() -> Iterator[Constant]:
    """Yield all constants of the cost model, in the order of its files."""
    for path in sorted(FOLDER.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        module = ".".join(path.relative_to(FOLDER).with_suffix("").parts)
        for name, at in _assigned(ast.parse(text)):
            yield Constant(module=module, name=name, line=at + 1, comment=_comment(text.splitlines(), at))


def _assigned(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in tree.body:
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


def _comment(lines: list[str], at: int) -> str:
    """Return the comment on a line and those right above it."""
    above = at
    while above and lines[above - 1].startswith("#"):
        above -= 1
    words = (line.partition("#")[2].strip() for line in lines[above : at + 1])
    return " ".join(words)
