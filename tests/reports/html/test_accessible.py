"""Axe-core finds nothing wrong with the pages: the report, that of `serve`, and the picture of a plan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.chromium import CHROMIUM, Page, chromium
from tests.serving.what_if import SMALL, served

import shardwright
from shardwright.plans.ranking import Ranking
from shardwright.reports.html.report import report
from shardwright.reports.svg.timeline import draw

AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: npm install axe-core, or its axe.min.js in AXE_CORE"),
]


@cache
def ranking() -> Ranking:
    model, cluster = shardwright.load_model("gpt2-medium"), shardwright.load_cluster("1x8xA100-SXM-40+2x8xV100-SXM2")
    return shardwright.plan(model, cluster, shardwright.make_job(global_batch=64, seq_len=1024, precision="fp16"))


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


def test_the_report_has_no_violation(page: Page, tmp_path: Path) -> None:
    (tmp_path / "r.html").write_text(report(ranking()), encoding="utf-8")
    page.open((tmp_path / "r.html").as_uri())
    page.wait("document.body.dataset.drawn")
    assert violations(page) == []


def test_the_page_of_serve_has_no_violation(page: Page) -> None:
    with served() as server:
        page.open(server.url + "#" + "&".join(f"{name}={quote(str(value))}" for name, value in SMALL.items()))
        page.wait("document.body.dataset.done")
        assert violations(page) == []


def test_draw_has_no_violation(page: Page, tmp_path: Path) -> None:
    text = f'<!doctype html><html lang="en"><title>draw</title><main><h1>draw</h1>{draw(ranking()).svg}</main></html>'
    (tmp_path / "draw.html").write_text(text, encoding="utf-8")
    page.open((tmp_path / "draw.html").as_uri())
    assert violations(page) == []


def test_a_page_with_a_violation_is_seen(page: Page, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text(
        "<!doctype html><title>x</title><main><h1>x</h1><img src='data:,'></main>", "utf-8"
    )
    page.open((tmp_path / "x.html").as_uri())
    assert {rule.split(":")[0] for rule in violations(page)} >= {"image-alt", "html-has-lang"}
