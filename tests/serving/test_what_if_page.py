"""The what-if page in Chromium: what it shows is what the library says, whoever looks and however they change it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.chromium import CHROMIUM, Page, chromium
from tests.serving.what_if import SMALL

from shardwright.reports.html.page_of import answer
from shardwright.serving.requests import plan_request, planned
from shardwright.serving.what_if.server import Server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
NAMED = frozenset({"textbox", "combobox", "slider", "button", "image", "link", "region", "form"})
ADDRESS = "#" + "&".join(f"{name}={quote(str(value))}" for name, value in SMALL.items())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        found.size(1280, 900)
        yield found


@pytest.fixture(autouse=True)
def _fresh(page: Page, server: Server) -> Iterator[None]:
    page.open("about:blank")
    page.open(server.url + ADDRESS)
    page.wait("document.body.dataset.done")
    yield
    assert page.wrong == []


def put(page: Page, name: str, value: str) -> None:
    """Type into a field, or drag a slider."""
    page.run(
        f"(() => {{ const at = document.querySelector({name!r}); at.value = {value!r};"
        "at.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )


def text(page: Page, name: str) -> str:
    return str(page.run(f"document.querySelector({name!r}).innerText"))


def test_the_answer_is_the_library_s(page: Page) -> None:
    best = planned(plan_request(SMALL), top=1).best
    assert text(page, "#answer") == answer(best)
    assert f"{best.predicted.mfu:.1%}" in text(page, "#key-figures")
    assert page.run("[...document.querySelectorAll('[data-chart]')].every((each) => each.querySelector('canvas'))")
    assert page.run("document.querySelectorAll('[data-chart]').length") == 5


def test_a_drag_changes_question_address_and_answer(page: Page) -> None:
    before = text(page, "#answer")
    for place in ("1", "2", "4"):
        put(page, ".group:last-child .nodes-drag", place)
    page.wait("document.body.dataset.done?.includes('4x8xV100-SXM2')")
    best = planned(plan_request(SMALL | {"cluster": "1x8xA100-SXM-40+4x8xV100-SXM2"}), top=1).best
    assert text(page, "#answer") == answer(best) != before
    assert "4x8xV100-SXM2" in page.run("location.hash")
    assert page.run("document.querySelector('.group:last-child .nodes').value") == "4"


def test_what_is_not_final_is_dimmed_and_buttons_wait_for_it(page: Page) -> None:
    look = (
        "[document.body.dataset.step, +getComputedStyle(document.querySelector('#key-figures')).opacity < 1,"
        "['#keep', '#export', '[data-to]'].every((name) => document.querySelector(name).disabled),"
        "document.querySelector('#progress').hidden, document.querySelector('#progress').value]"
    )
    page.run(
        f"window.seen = []; new MutationObserver(() => document.body.dataset.step && seen.push({look}))"
        ".observe(document.body, { attributes: true, attributeFilter: ['data-step'] })"
    )
    put(page, "#global_batch", "128")
    page.wait("document.body.dataset.done?.includes('128')")
    seen = page.run("window.seen")
    assert seen[0] == ["first", True, True, False, 1]
    assert ["best", False, False, True, 3] in seen
    assert page.run(look)[1:] == [False, False, True, 3]


def test_the_address_brings_the_question_back(page: Page, server: Server) -> None:
    put(page, "#global_batch", "128")
    page.wait("document.body.dataset.done?.includes('global_batch=128')")
    shown, address = text(page, "#answer"), page.run("location.href")
    page.open("about:blank")
    page.open(address)
    page.wait("document.body.dataset.done")
    assert text(page, "#answer") == shown
    assert page.run("document.querySelector('#global_batch').value") == "128"


def test_what_is_wrong_stands_beside_its_field_and_goes_when_mended(page: Page) -> None:
    put(page, "#tokens", "many")
    page.wait("document.body.dataset.step === 'errors'")
    assert "number" in text(page, "#tokens-wrong")
    assert page.run("document.querySelector('#tokens').getAttribute('aria-describedby')") == "tokens-wrong"
    put(page, "#tokens", "2B")
    page.wait("document.body.dataset.done?.includes('tokens=2B')")
    assert text(page, "#tokens-wrong") == "" and page.run("document.querySelector('[aria-invalid]')") is None


def test_no_plan_says_why_and_what_would_help(page: Page) -> None:
    page.run("location.hash = 'model=llama-2-7b&cluster=1x1xT4&precision=fp16&global_batch=1&seq_len=2048'")
    page.wait("document.body.dataset.done?.includes('llama-2-7b')")
    assert text(page, "#answer").startswith("No plan") and text(page, "#next")


def test_two_scenarios_side_by_side(page: Page, server: Server) -> None:
    page.run("document.querySelector('#keep').click()")
    put(page, "#global_batch", "256")
    page.wait("document.body.dataset.done?.includes('global_batch=256')")
    rows = text(page, "#compared")
    assert "iteration" in rows and "%" in rows
    address = page.run("location.href")
    page.open("about:blank")
    page.open(address)
    page.wait("document.body.dataset.done && document.body.dataset.kept")
    assert text(page, "#compared") == rows
    page.run("document.querySelector('#drop').click()")
    assert page.run("document.querySelector('#compare').hidden") and "kept" not in page.run("location.hash")


def test_no_name_becomes_a_tag(page: Page) -> None:
    page.run("location.hash = 'model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&tokens=%3Cb%3E'")
    page.wait("document.body.dataset.step === 'errors'")
    assert page.run("document.querySelector('main img, main b')") is None


def test_it_fits_phones_and_wide_screens(page: Page) -> None:
    for width, height in ((390, 844), (2560, 1300), (1280, 900)):
        page.size(width, height)
        page.wait(f"document.documentElement.scrollWidth <= {width}")


def test_every_control_has_a_name_and_colours_follow_the_scheme(page: Page) -> None:
    for scheme in ("dark", "light"):
        page.colours(scheme)
        assert page.unnamed(NAMED) == []
        paper = page.run("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")


def test_it_works_by_keyboard(page: Page) -> None:
    page.run("document.querySelector('#global_batch-drag').focus()")
    for kind in ("keyDown", "keyUp"):
        page.send("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
    page.wait("document.body.dataset.done?.includes('global_batch=128')")
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_a_plan_is_saved(page: Page, tmp_path: Path) -> None:
    page.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.run(
        "(() => { const save = shardwright.save; shardwright.save = (name, blob) => blob.text().then((text) => {"
        "window.saved = [name, text]; }); document.querySelector('[data-to=plan]').click(); })()"
    )
    page.wait("window.saved")
    name, content = page.run("window.saved")
    assert name == "plan.json" and '"version"' in content and text(page, "#to-wrong") == ""
