"""Takes the pictures of pages that README and docs show, with headless Chromium: `python -m docs.make_screenshots`."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from tests.chromium import Page, chromium

from shardwright.serving.what_if.server import Server

DOCS = Path(__file__).parent
QUESTION = "#model=llama-3.1-70b&cluster=8x8xH100-SXM%2B16x8xA100-SXM-80&global_batch=512&seq_len=8192&tokens=100B"
MOST_BYTES = 200_000


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chromium(Path(folder)) as page:
        page.size(1180, 860)
        with Server("127.0.0.1", 0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            page.open(server.url + QUESTION)
            page.wait("document.body.dataset.done")
            _take(page, DOCS / "serve.png")
            server.shutdown()
        assert page.wrong == [], page.wrong


def _take(page: Page, path: Path) -> None:
    page.picture(path)
    assert path.stat().st_size <= MOST_BYTES, f"{path} has {path.stat().st_size:,} bytes"


if __name__ == "__main__":
    main()
