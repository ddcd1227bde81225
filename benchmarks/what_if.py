"""The what-if page in the browser: milliseconds from a slider's move to the first answer on screen, and to the
proof, for 512 GPUs of two types.

.venv/bin/python -m benchmarks.what_if

Needs Chromium. Wall-clock time: the page, the server and its searches share the machine with whatever else runs.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
from pathlib import Path
from urllib.parse import quote

from tests.chromium import Page, chromium

from shardwright.serving.what_if.server import Server

QUESTIONS = (
    ("llama-3.1-70b", "32x8xH100-SXM+32x8xA100-SXM-80", 512),
    ("mixtral-8x7b", "32x8xH100-SXM+32x8xA100-SXM-80", 512),
    ("llama-2-7b", "16x8xH100-SXM+16x8xA100-SXM-80+16x8xA100-SXM-40+16x8xA800-SXM-80", 1024),
)
MOVES = range(9, 20)


def main() -> None:
    with Server("127.0.0.1", 0) as server, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with chromium(Path(folder)) as page:
            page.size(1400, 1000)
            print(f"{'model':<16} {'first on screen, ms':>20} {'longest':>8} {'end of the search, ms':>22}")
            for model, cluster, batch in QUESTIONS:
                page.open("about:blank")
                page.open(f"{server.url}#model={model}&cluster={quote(cluster)}&global_batch={batch}")
                page.wait("document.body.dataset.done")
                first, end = zip(*(_moved(page, machines) for machines in MOVES), strict=True)
                print(
                    f"{model:<16} {statistics.median(first):>20.0f} {max(first):>8.0f} {statistics.median(end):>22.0f}"
                )
        server.shutdown()


def _moved(page: Page, machines: int) -> tuple[float, float]:
    """Move the first slider of machines; return when the first answer was painted and when the search had ended."""
    script = f"""(async () => {{
        const drag = document.querySelector('.nodes-drag'), begin = performance.now();
        delete document.body.dataset.latency;
        drag.value = {machines};
        drag.dispatchEvent(new Event('input', {{ bubbles: true }}));
        const until = (done) => new Promise((go) => {{
            const look = () => (done() ? go(performance.now() - begin) : setTimeout(look, 2)); look(); }});
        const first = await until(() => document.body.dataset.latency);
        return [first, await until(() => document.body.dataset.done)]; }})()"""
    first, end = page.run(script)
    return first, end


if __name__ == "__main__":
    main()
