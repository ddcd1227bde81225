"""Pages that are made from the code are those of the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs"
REMEDY = "run `make docs`"


def maker(name: str) -> ModuleType:
    """Return a script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_folder_map_is_current() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert maker("make_folder_map").page(text) == text, REMEDY


def test_the_page_of_who_runs_what_is_current() -> None:
    assert maker("make_support").page() == (DOCS / "support.md").read_text(encoding="utf-8"), REMEDY


def test_the_reference_of_the_command_line_is_current() -> None:
    assert maker("make_reference").command_line() == (DOCS / "reference" / "cli.md").read_text(encoding="utf-8"), REMEDY


def test_the_reference_of_the_library_is_current() -> None:
    assert maker("make_reference").library() == (DOCS / "reference" / "library.md").read_text(encoding="utf-8"), REMEDY


def test_the_table_of_families_is_current_and_nothing_in_it_differs_by_more_than_a_thousandth() -> None:
    text = (DOCS / "model-families.md").read_text(encoding="utf-8")
    assert maker("make_model_families").page() == text, REMEDY
    assert max(map(float, re.findall(r"\| ([0-9.]+)% \|", text))) <= 0.1
