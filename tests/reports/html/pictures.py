"""The pages as pictures: the report, that of `serve`, and draw, in both colour schemes.

`python -m tests.reports.html.pictures` takes those that are kept in tests/golden/pages anew.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from urllib.parse import quote

from tests.chromium import Page, chromium
from tests.serving.what_if import SMALL, served

import shardwright
from shardwright import Ranking, draw, report

KEPT = Path(__file__).parents[2] / "golden" / "pages"
SIZE, SCALE = (900, 2400), 0.4  # what is kept is small
# Mean difference of two pictures over all pixels and channels, of 255, as a page in JavaScript.
DIFFERENCE = """(async (one, other) => {
  const pixels = async (png) => {
    const image = new Image(); image.src = 'data:image/png;base64,' + png; await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height), pen = canvas.getContext('2d');
    pen.drawImage(image, 0, 0);
    return pen.getImageData(0, 0, image.width, image.height);
  };
  const [mine, theirs] = [await pixels(one), await pixels(other)];
  if (mine.width !== theirs.width || mine.height !== theirs.height) return 255;
  let sum = 0;
  for (let place = 0; place < mine.data.length; place++) sum += Math.abs(mine.data[place] - theirs.data[place]);
  return sum / (mine.data.length * 3 / 4);
})"""


@cache
def ranking() -> Ranking:
    model, cluster = shardwright.load_model("gpt2-medium"), shardwright.load_cluster("1x8xA100-SXM-40+2x8xV100-SXM2")
    return shardwright.plan(model, cluster, shardwright.make_job(global_batch=64, seq_len=1024, precision="fp16"))


@contextmanager
def report_page(page: Page, folder: Path) -> Iterator[None]:
    (folder / "r.html").write_text(report(ranking()), encoding="utf-8")
    page.open((folder / "r.html").as_uri())
    page.wait("document.body.dataset.drawn")
    yield


@contextmanager
def serve_page(page: Page, folder: Path) -> Iterator[None]:
    with served() as server:
        page.open(server.url + "#" + "&".join(f"{name}={quote(str(value))}" for name, value in SMALL.items()))
        page.wait("document.body.dataset.done")
        yield


@contextmanager
def draw_page(page: Page, folder: Path) -> Iterator[None]:
    text = f'<!doctype html><html lang="en"><title>draw</title><main><h1>draw</h1>{draw(ranking()).svg}</main></html>'
    (folder / "draw.html").write_text(text, encoding="utf-8")
    page.open((folder / "draw.html").as_uri())
    yield


PAGES: dict[str, Callable[[Page, Path], AbstractContextManager[None]]] = {
    "report": report_page,
    "serve": serve_page,
    "draw": draw_page,
}


LOOKS = (*product(("report", "serve"), ("light", "dark")), ("draw", "light"))  # draw is on white paper in both schemes


def take(page: Page, name: str, scheme: str, folder: Path) -> bytes:
    """Return a picture of a page, with most of its charts."""
    page.colours(scheme)
    page.size(*SIZE, scale=SCALE)
    with PAGES[name](page, folder):
        page.picture(folder / "shown.png")
    return (folder / "shown.png").read_bytes()


def difference(page: Page, mine: bytes, theirs: bytes) -> float:
    """Return the mean difference of two pictures over all pixels, of 255."""
    both = ",".join(json.dumps(base64.b64encode(picture).decode()) for picture in (mine, theirs))
    page.run(f"window.difference = null; {DIFFERENCE}({both}).then((value) => {{ window.difference = value }}); true")
    page.wait("window.difference !== null")
    return float(page.run("window.difference"))


def main() -> None:
    """Take the pictures that are kept anew."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chromium(Path(folder)) as page:
        for name, scheme in LOOKS:
            (KEPT / f"{name}-{scheme}.png").write_bytes(take(page, name, scheme, Path(folder)))


if __name__ == "__main__":
    main()
