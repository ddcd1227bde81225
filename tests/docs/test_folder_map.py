"""The folder map of docs/architecture.md is that of the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_folder_map_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make_folder_map", DOCS / "make_folder_map.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert maker.page(text) == text, "run `python docs/make_folder_map.py`"
