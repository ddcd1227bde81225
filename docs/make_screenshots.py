"""Takes the pictures that README and docs show of one plan: the timeline, and with headless Chromium the report and the
what-if page. `python -m docs.make_screenshots`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tests.chromium import Page, chromium

from shardwright.serving.what_if.server import Server

DOCS = Path(__file__).parent
QUESTION = "#model=llama-3.1-70b&cluster=8x8xH100-SXM%2B16x8xA100-SXM-80&global_batch=512&seq_len=8192&tokens=100B"
PLAN = [
    "plan",
    "--model",
    "llama-3.1-70b",
    "--cluster",
    "8x8xH100-SXM+16x8xA100-SXM-80",
    "--global-batch",
    "512",
    "--seq-len",
    "8192",
    "--tokens",
    "100B",
]
MOST_BYTES = 200_000


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chromium(Path(folder)) as page:
        report = _report(Path(folder))
        page.size(1100, 960)
        page.open(report.as_uri())
        _take(page, DOCS / "report.png")
        page.size(1180, 860)
        with Server("127.0.0.1", 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            page.open(server.url + QUESTION)
            page.wait("document.body.dataset.done")
            _take(page, DOCS / "serve.png")
            server.shutdown()
        assert page.wrong == [], page.wrong


def _report(folder: Path) -> Path:
    """Draw the timeline of the plan, and return its report as a page."""
    plan, ranking, page = folder / "plan.json", folder / "ranking.json", folder / "report.html"
    ranking.write_bytes(_shardwright(*PLAN, "--out", plan, "--json", "--fewer"))
    _shardwright("draw", plan, "--out", DOCS / "mixed.svg")
    _shardwright("report", ranking, "--out", page)
    return page


def _shardwright(*arguments: str | Path) -> bytes:
    return subprocess.run([sys.executable, "-m", "shardwright", *arguments], check=True, stdout=subprocess.PIPE).stdout


def _take(page: Page, path: Path) -> None:
    page.picture(path)
    assert path.stat().st_size <= MOST_BYTES, f"{path} has {path.stat().st_size:,} bytes"


if __name__ == "__main__":
    main()
