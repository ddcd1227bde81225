"""An object store over HTTP that can be told to fail, and fsspec's view of it: `remote://HOST:PORT/...`."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

import fsspec

PATIENCE_SECONDS, SLOW_SECONDS = 600.0, 2.0


class Store(BaseHTTPRequestHandler):
    """An object store that can be told to fail: `fault` is the way. `reads` are the files that were asked for."""

    objects: dict[str, bytes]
    reads: list[str]
    fault = ""
    says_md5 = True

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self._failed():
            return
        if self.headers.get("If-None-Match") and self.path in self.objects:
            self._say(412)
            return
        if self.fault == "keeps half":
            content = content[: len(content) // 2]
        if self.fault == "keeps other bytes":
            content = bytes(value ^ 255 for value in content)
        self.objects[self.path] = content
        self._say(200)

    def do_GET(self) -> None:
        if self._failed():
            return
        if self.path.startswith("/?like="):
            names = [name for name in list(self.objects) if fnmatch(name, unquote(self.path[7:]))]
            self._say(200, json.dumps(names).encode())
            return
        if self.path.startswith("/?md5="):
            kept = self.objects[unquote(self.path[6:])]
            said = hashlib.md5(kept).hexdigest() if self.says_md5 else "-"
            self._say(200, f"{said} {len(kept)}".encode())
            return
        self.reads.append(self.path)
        content = self.objects.get(self.path)
        if content is None:
            self._say(404)
            return
        low, high = (int(part) for part in self.headers["Range"].split("-")) if "Range" in self.headers else (0, None)
        part = content[low:high]
        if self.fault == "wrong bytes":
            part = bytes(value ^ 255 for value in part)
        if self.fault == "truncated":
            part = part[: len(part) // 2]
        self._say(200, part)

    def do_DELETE(self) -> None:
        for name in [name for name in list(self.objects) if name.startswith(self.path)]:
            del self.objects[name]
        self._say(200)

    def _failed(self) -> bool:
        if self.fault == "slow":
            time.sleep(SLOW_SECONDS)
        if self.fault == "silent":
            time.sleep(PATIENCE_SECONDS)
        if self.fault == "503":
            self._say(503)
        elif self.fault == "reset":
            self.connection.close()
        else:
            return False
        return True

    def _say(self, code: int, content: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        return


class Sent(io.BytesIO):
    """A file that is sent whole when it is closed."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self.send = send

    def close(self) -> None:
        if not self.closed:
            self.send(self.getvalue())
        super().close()


class Remote(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """That store, as fsspec sees one."""

    protocol = "remote"
    cachable = False
    exclusive_create = True

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("remote://")

    def _asked(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        host, _, name = self._strip_protocol(path).partition("/")
        connection = HTTPConnection(host, timeout=PATIENCE_SECONDS)
        try:
            connection.request(method, "/" + name, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except Exception as error:
            raise OSError(f"{host}: {error}") from None
        finally:
            connection.close()
        if answer.status == 412:
            raise FileExistsError(path)
        if answer.status != 200:
            raise OSError(f"{host} answers {answer.status}")
        return content

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        return

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        headers = {"If-None-Match": "*"} if mode == "create" else {}
        self._asked("PUT", path, value, **headers)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return Sent(partial(self.pipe_file, path))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        headers = {} if start is None else {"Range": f"{start}-{end}"}
        return self._asked("GET", path, None, **headers)

    def glob(self, path: str, **_options: Any) -> list[str]:
        host, _, name = self._strip_protocol(path).partition("/")
        return [host + found for found in json.loads(self._asked("GET", f"{host}/?like=/{quote(name)}"))]

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        host, _, name = self._strip_protocol(path).partition("/")
        said, size = self._asked("GET", f"{host}/?md5=/{quote(name)}").decode().split()
        return {"name": path, "size": int(size), "ETag": "" if said == "-" else said}

    def rm_file(self, path: str) -> None:
        self._asked("DELETE", path)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        self._asked("DELETE", path)


@contextmanager
def store(host: str = "127.0.0.1") -> Iterator[tuple[type[Store], str]]:
    """Yield a store at a host of this machine, and the URL of a run in it."""

    class Mine(Store):
        objects: dict[str, bytes] = {}  # noqa: RUF012
        reads: list[str] = []  # noqa: RUF012

        def handle(self) -> None:
            try:
                super().handle()
            except (OSError, ValueError):
                return

    fsspec.register_implementation("remote", Remote, clobber=True)
    server = ThreadingHTTPServer((host, 0), Mine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Mine, f"remote://{host}:{server.server_address[1]}/run"
    finally:
        server.shutdown()
        server.server_close()
