"""Token files behind a URL, from a server in this process that can fail in the usual ways."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.commands import make_folder, rows, run_alone

from shardwright.cli.train_input import sources_of
from shardwright.errors import SpecError
from shardwright.runtime.storage import data
from shardwright.runtime.storage.data import open_tokens, require_known
from shardwright.runtime.storage.mixture import Mixture, Source, open_mixture

pytest.importorskip("aiohttp")
RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Server:
    """Serves a folder. The next requests fail with the statuses of `failures`, or with all of them by the first where
    `down`; without `ranges` every request gets the whole file. `sent` are the sizes of answers."""

    folder: Path
    url: str = ""
    ranges: bool = True
    down: bool = False
    failures: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = self.folder / request.path.lstrip("/")
        status = 503 if self.down else self.failures.pop() if self.failures else 200 if path.exists() else 404
        content = path.read_bytes() if status == 200 else b""
        asked = RANGE.fullmatch(request.headers.get("Range", ""))
        if asked and self.ranges and content:
            status, content = 206, content[int(asked[1]) : int(asked[2]) + 1]
        request.send_response(status)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if request.command == "GET":
            self.sent.append(len(content))
            request.wfile.write(content)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(make_folder(tmp_path))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.answer(self)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
        found.url = f"http://127.0.0.1:{http.server_port}/c.bin"
        yield found
        http.shutdown()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "RETRY_SECONDS", (0.0,) * len(data.RETRY_SECONDS))


def samples(where: Path | str) -> Mixture:
    return open_mixture([Source(path=where)], seq_len=16, seed=3, vocab=257, batch=4)


def test_samples_are_those_of_the_file_and_no_more_of_it_is_read(server: Server) -> None:
    there, here = samples(server.url), samples(server.folder / "c.bin")
    assert there.name == here.name and there.fingerprint == here.fingerprint
    server.sent.clear()
    np.testing.assert_array_equal(there.rows(170, 30), here.rows(170, 30))
    assert server.sent == [17 * 2] * 30


def test_tokens_that_the_model_lacks_are_found_at_the_start_or_before_they_are_used(server: Server) -> None:
    there = open_tokens(server.url)
    require_known(there, 257)
    tokens = np.fromfile(server.folder / "c.bin", "<u2")
    tokens[1_000] = 300
    tokens.tofile(server.folder / "c.bin")
    with pytest.raises(SpecError, match=r"c.bin: token 1,000 is 300, the model's vocabulary ends at 256"):
        require_known(open_tokens(server.url), 257)
    (part,) = samples(server.url).parts
    with pytest.raises(SpecError, match="token 1,000 is 300"):
        part.rows([number for number in range(part.count) if 0 <= 1_000 - part._start(number) < part.seq_len])


def test_what_fails_is_tried_again(server: Server) -> None:
    there, here = samples(server.url), samples(server.folder / "c.bin")
    server.failures = [503, 500, 429, 502]
    np.testing.assert_array_equal(there.rows(0, 8), here.rows(0, 8))
    assert not server.failures
    server.down = True
    with pytest.raises(SpecError, match=r"c.bin: cannot be read: .*503.*go on with `resume=` once it can"):
        there.rows(0, 8)


def test_what_cannot_be_used_is_said(server: Server) -> None:
    with pytest.raises(SpecError, match=r"none.bin: has no header none.json"):
        open_tokens(server.url.replace("c.bin", "none.bin"))
    with pytest.raises(SpecError, match="Protocol not known: nowhere"):
        open_tokens("nowhere://a/b.bin")
    server.ranges = False
    with pytest.raises(SpecError, match="sent other bytes than were asked for"):
        samples(server.url).rows(0, 1)
    (server.folder / "c.bin").write_bytes(b"short")
    with pytest.raises(SpecError, match="has 5 bytes, its header says"):
        samples(server.url)
    server.down = True
    with pytest.raises(SpecError, match=r"c.json: cannot be read: .*503"):
        samples(server.url)


def test_the_command_line_takes_urls() -> None:
    assert sources_of(["s3://a/b.bin=0.5", "c.bin=0.5"]) == (
        Source(path="s3://a/b.bin", weight=0.5),
        Source(path=Path("c.bin"), weight=0.5),
    )


@pytest.mark.nightly
def test_a_run_from_a_url_goes_on_where_it_stopped_also_from_a_copy(server: Server) -> None:
    plan, local = server.folder / "single.json", server.folder / "c.bin"

    def losses(*told: object) -> list[str]:
        done = run_alone(plan, *told)
        assert done.returncode == 0, done.stderr
        return [row["loss"] for row in rows(Path(str(told[told.index("--out") + 1])))]

    whole = losses("--data", local, "--steps", 4, "--out", server.folder / "whole")
    out = server.folder / "parts"
    losses("--data", server.url, "--eval-data", server.url, "--steps", 2, "--out", out)
    assert losses("--data", local, "--steps", 4, "--out", out, "--resume", out) == whole
