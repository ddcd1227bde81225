"""The pages look as the pictures that are kept, and show everything on a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.chromium import CHROMIUM, Page, chromium
from tests.reports.html.pictures import KEPT, LOOKS, PAGES, SCALE, SIZE, difference, ranking, take

from shardwright.reports.html.report import report

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]
# Of 255: the seconds that a search took move 0.01, all charts of a page gone 3.6, another font 15.
ALIKE = 1.0
FONT, WIDTH = "16px system-ui, sans-serif", 392.9  # of SAMPLE in the font of the pictures, DejaVu Sans
SAMPLE = "Quick wafting zephyrs vex bold Jim: 0123456789"
PHONE = 390
# Elements that reach beyond the screen, but for those in a part that scrolls.
BEYOND = f"""JSON.stringify([...document.querySelectorAll('body *')].filter((element) => {{
  for (let above = element.parentElement; above; above = above.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(above).overflowX)) return false;
  const box = element.getBoundingClientRect();
  return box.width && (box.right > {PHONE + 1} || box.left < -1);
}}).map((element) => element.outerHTML.slice(0, 100)))"""

# The options of all charts of a page.
OPTIONS = (
    "[...document.querySelectorAll('[data-chart]')].map((place) => echarts.getInstanceByDom(place)?.getOption())"
    ".filter(Boolean)"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as shown:
        yield shown


@pytest.mark.parametrize(("name", "scheme"), LOOKS)
def test_pages_look_as_they_did(page: Page, tmp_path: Path, name: str, scheme: str) -> None:
    pen = f"Object.assign(document.createElement('canvas').getContext('2d'), {{font: '{FONT}'}})"
    if abs(page.run(f"{pen}.measureText('{SAMPLE}').width") - WIDTH) > 1.0:
        pytest.skip("the fonts of this machine are not those of the pictures")
    now = take(page, name, scheme, tmp_path)
    page.open("about:blank")
    assert difference(page, now, (KEPT / f"{name}-{scheme}.png").read_bytes()) <= ALIKE, (
        "`python -m tests.reports.html.pictures` takes the new look over"
    )


def test_another_page_scheme_or_chart_is_seen(page: Page, tmp_path: Path) -> None:
    light, dark, other = (
        (KEPT / f"{name}.png").read_bytes() for name in ("report-light", "report-dark", "serve-light")
    )
    page.colours("light")
    page.size(*SIZE, scale=SCALE)
    with PAGES["report"](page, tmp_path):
        page.run("for (const chart of document.querySelectorAll('[data-chart]')) chart.style.visibility = 'hidden'")
        page.picture(tmp_path / "bare.png")
    page.open("about:blank")
    for changed in (dark, other, (tmp_path / "bare.png").read_bytes()):
        assert difference(page, light, changed) > ALIKE


def test_charts_are_hatched_when_asked_for(page: Page, tmp_path: Path) -> None:
    hatched = f"{OPTIONS}.map((option) => option.aria?.[0]?.decal?.show ?? option.aria?.decal?.show ?? false)"
    with PAGES["report"](page, tmp_path):
        assert not any(page.run(hatched))
        page.run("document.querySelector('[data-hatching]').click()")
        assert any(page.run(hatched))


def test_nothing_is_clipped_on_a_phone_by_long_names(page: Page, tmp_path: Path) -> None:
    found = ranking()
    named = tuple(replace(plan, model=replace(plan.model, name="-".join(["long"] * 20))) for plan in found.plans)
    (tmp_path / "r.html").write_text(report(replace(found, plans=named)), encoding="utf-8")
    page.size(PHONE, 844, mobile=True)
    page.open((tmp_path / "r.html").as_uri())
    page.wait("document.body.dataset.drawn")
    assert page.run("document.documentElement.scrollWidth") == PHONE
    assert json.loads(page.run(BEYOND)) == []
    assert page.run(f"{OPTIONS}.every((option) => option.legend.every((legend) => legend.type !== 'scroll'))")
    assert page.run(
        f"{OPTIONS}.every((option) => option.yAxis.every((axis) => axis.axisLabel.overflow !== 'truncate'))"
    )
