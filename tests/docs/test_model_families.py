"""docs/model-families.md is that of the families, and nothing in it differs by more than a thousandth."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_families_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make_model_families", DOCS / "make_model_families.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    text = (DOCS / "model-families.md").read_text(encoding="utf-8")
    assert maker.page() == text, "run `python docs/make_model_families.py`"
    assert max(map(float, re.findall(r"\| ([0-9.]+)% \|", text))) <= 0.1
