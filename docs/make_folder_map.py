"""Writes the folder map of docs/architecture.md from the docstrings of the folders.

.venv/bin/python docs/make_folder_map.py
"""

from __future__ import annotations

import ast
from pathlib import Path

from shardwright.files import write_atomically

PAGE = Path(__file__).with_name("architecture.md")
PACKAGE = Path(__file__).parents[1] / "src" / "shardwright"
BEGIN, END = "<!-- folder map: docs/make_folder_map.py -->", "<!-- end of the folder map -->"
FLOORS = (
    "spec",
    "runs",
    "plans",
    "cost",
    "synthesis",
    "search",
    "recovery",
    "spmd",
    "runtime",
    "exporters",
    "importers",
    "reports",
)
FLOORS += ("validation", "measure", "discovery", "traces", "rehearsal", "diagnosis", "serving", "cli")


def main() -> None:
    """Write the map between its two marks."""
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8")))


def page(text: str) -> str:
    """Return the page with a new map."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{folder_map()}\n{END}{rest.partition(END)[2]}"


def folder_map() -> str:
    """Return a line for every folder, inner ones indented, lowest floor first."""
    return "".join(f"{line}\n" for floor in FLOORS for line in _lines(PACKAGE / floor, 0))


def _lines(folder: Path, depth: int) -> list[str]:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    lead = " ".join(docstring.split("\n\n")[0].split())
    inner = sorted(path.parent for path in folder.glob("*/__init__.py"))
    line = f"{'  ' * depth}* `{folder.relative_to(PACKAGE)}/` {lead}"
    return [line, *(below for path in inner for below in _lines(path, depth + 1))]


if __name__ == "__main__":
    main()
