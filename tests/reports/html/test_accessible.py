"""Axe-core finds nothing wrong with the pages: the report, that of `serve`, and the picture of a plan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chromium import CHROMIUM, Page, chromium
from tests.reports.html.pictures import PAGES

AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: npm install axe-core, or its axe.min.js in AXE_CORE"),
]


@pytest.fixture(params=["light", "dark"])
def page(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    with chromium(tmp_path) as found:
        found.colours(request.param)
        found.size(1280, 900)
        yield found


def violations(page: Page) -> list[str]:
    """Return each violation that axe-core finds, with the elements that it is about."""
    page.run(AXE.read_text(encoding="utf-8") + "; true")
    found = page.run(
        "axe.run(document).then((found) => found.violations.map((rule) =>"
        "`${rule.id}: ${rule.nodes.slice(0, 5).map((node) => node.html.slice(0, 200)).join(' | ')}`))"
    )
    assert isinstance(found, list)
    return [str(rule) for rule in found]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_violation(page: Page, tmp_path: Path, name: str) -> None:
    with PAGES[name](page, tmp_path):
        assert violations(page) == []


def test_a_page_with_a_violation_is_seen(page: Page, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text(
        "<!doctype html><title>x</title><main><h1>x</h1><img src='data:,'></main>", "utf-8"
    )
    page.open((tmp_path / "x.html").as_uri())
    assert {rule.split(":")[0] for rule in violations(page)} >= {"image-alt", "html-has-lang"}
