"""Modules that docstrings, comments and pages name are there, and so are the files that pages link to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shardwright

PACKAGE = Path(shardwright.__file__).parent
ROOT = PACKAGE.parent.parent
ROOMS = sorted(folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists())
DOTTED = re.compile(rf"`((?:{'|'.join(ROOMS)})(?:\.[a-z_]+)+)(?:\.[A-Z]\w*)?`")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
FILES = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w/]+\.py)`")


def missing(text: str) -> list[str]:
    """Return the modules and files of the package that `text` names in backticks and that are not there."""
    files = [name for name in FILES.findall(text) if not (PACKAGE / name).is_file()]
    return files + [name for name in DOTTED.findall(text) if not _is_there(name)]


def _is_there(name: str) -> bool:
    """Whether a dotted name is a module or a folder, or a name that its module has."""
    path = PACKAGE.joinpath(*name.split("."))
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    home = path.parent / "__init__.py" if path.parent.is_dir() else path.parent.with_suffix(".py")
    return home.is_file() and re.search(rf"\b{path.name}\b", home.read_text(encoding="utf-8")) is not None


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the pages are in a checkout")
def test_modules_that_are_named_are_there() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    gone = {
        str(path.relative_to(ROOT)): names
        for path in (*PACKAGE.rglob("*.py"), *pages)
        if (names := missing(path.read_text(encoding="utf-8")))
    }
    assert gone == {}


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the pages are in a checkout")
def test_files_that_pages_link_to_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(path, link) for path in pages for link in LINK.findall(path.read_text(encoding="utf-8"))]
    assert len(links) > 100
    assert [f"{path.name}: {link}" for path, link in links if not (path.parent / link).exists()] == []
    inside = [(path, (path.parent / link).resolve()) for path, link in links if path.parent != ROOT]
    outward = [f"{path.name}: {target}" for path, target in inside if not target.is_relative_to(ROOT / "docs")]
    assert outward == [], "the site has the pages of docs alone"


def test_a_module_that_is_gone_is_found() -> None:
    assert missing("as `cost.gone` and `cost/gone.py` have it, not `cost.pipeline.bound`") == [
        "cost/gone.py",
        "cost.gone",
    ]
