"""HTTP for the what-if page and for programs: the standard library's server, a thread for each request, a process for
each search. `/openapi.json` describes what may be asked.

The page is for the person at this machine. Who can reach the port can ask for plans, within limits of size and time,
and for nothing else: no path, no expression and no name of a file from a request is ever opened or evaluated. Against
other pages in the same browser, which could send requests here: a `Host` that is a name but this machine's own is
refused (DNS rebinding), a request from another origin is refused, and questions are JSON, which no foreign form can
send.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from ipaddress import ip_address
from multiprocessing.connection import wait
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

from shardwright.cost.site.calibration import SiteCalibration
from shardwright.errors import SpecError, bad
from shardwright.rows import stated
from shardwright.serving.answers import Answer, error_answer
from shardwright.serving.requests import MOST_SECONDS
from shardwright.serving.tools import API, MOST_TOOL_BYTES, Toolbox, openapi
from shardwright.serving.what_if.downloads import KINDS, download
from shardwright.serving.what_if.page import FILES, File
from shardwright.serving.what_if.steps import steps
from shardwright.serving.worker import Question, asked, once, prepare
from shardwright.spec.text.fields import shown
from shardwright.spec.text.reading import parse_json

OPENAPI = "/openapi.json"
NOTES = "Shardwright-Notes"  # what a command says beside its document, as a JSON list in ASCII
MOST_BYTES = 16_384  # of a question of the page
MOST_AT_ONCE = 4  # searches
PATIENCE_SECONDS = 10.0  # for a question to arrive, and for a free place among the searches
LATE: Answer = {
    "step": "late",
    "errors": [
        {
            "path": "",
            "field": "",
            "message": f"stopped after {MOST_SECONDS:.0f} s",
            "hint": "what stands here was found by then",
        }
    ],
}
SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Server(ThreadingHTTPServer):
    """Serves the page until it is closed, its plans on the site of a calibration if one is given, by its file, and
    tools. Raises SpecError where the address cannot be had."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        host: str,
        port: int,
        site: SiteCalibration | None = None,
        toolbox: Toolbox | None = None,
        site_file: str = "",
    ) -> None:
        self.host = host
        self.toolbox = toolbox or Toolbox(tools=(), ask=_nobody)
        self.on_site: dict[str, Any] = {"site": site, "site_file": site_file}
        self.places = BoundedSemaphore(MOST_AT_ONCE)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise bad(
                "`port=`", f"{host}:{port} cannot be opened: {reason}", "choose another; 0 takes a free one"
            ) from None
        prepare()

    @property
    def url(self) -> str:
        """Where the page is."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"

    @cached_property
    def described(self) -> bytes:
        """What may be asked, as an OpenAPI document."""
        return json.dumps(openapi(self.toolbox.tools, version("shardwright"), KINDS), indent=1).encode()

    @property
    def exposed(self) -> bool:
        """Return whether other machines can reach the page."""
        try:
            return not ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE_SECONDS
    server_version, sys_version = "shardwright", ""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is the user's."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        file = File("application/json", lambda: self._server.described) if path == OPENAPI else FILES.get(path)
        if not self._from_here():
            return
        if file is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self._send(file.type, file.content())

    def do_POST(self) -> None:
        length = int(size) if (size := self.headers.get("Content-Length", "")).isdecimal() else 0
        if not self._from_here():
            return
        tool = self.path.startswith(API) and self._server.toolbox.tool(self.path.removeprefix(API)) is not None
        if not tool and self.path not in ("/answer", "/download"):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif self.headers.get_content_type() != "application/json":
            self.send_error(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        elif not 0 < length <= (MOST_TOOL_BYTES if tool else MOST_BYTES):
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            self._question(self.rfile.read(length))

    def _question(self, body: bytes) -> None:
        try:
            fields = parse_json(body.decode("utf-8", "replace"), "request")
        except SpecError as error:
            self._send_json(error_answer(error), HTTPStatus.BAD_REQUEST)
            return
        places = self._server.places
        if not places.acquire(timeout=PATIENCE_SECONDS):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain="too many searches at once")
            return
        try:
            {"/answer": self._stream, "/download": self._file}.get(self.path, self._tool)(fields)
        except OSError:  # the page has gone, or asks something else by now
            self.close_connection = True
        finally:
            places.release()

    def _stream(self, fields: object) -> None:
        """Send every answer as a line of JSON as soon as it is there."""
        self._head("application/x-ndjson")
        for answer in self._answers(partial(steps, **self._server.on_site), fields):
            self.wfile.write(json.dumps(answer, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def _file(self, fields: object) -> None:
        for answer in self._answers(partial(download, **self._server.on_site), fields):
            if "content" in answer:
                self._send(answer["type"], answer["content"], name=answer["name"])
            else:
                self._send_json(answer, HTTPStatus.UNPROCESSABLE_ENTITY)

    def _tool(self, fields: object) -> None:
        """Send the document of a tool, which works in a folder of its own, or what is wrong."""
        if not isinstance(fields, dict):
            wrong = bad(
                "request", f"expected keys with values, got {shown(fields)}", 'send {"model": "llama-3.1-8b", …}'
            )
            self._send_json(error_answer(wrong), HTTPStatus.UNPROCESSABLE_ENTITY)
            return
        with TemporaryDirectory(prefix="shardwright-") as folder:
            question = partial(self._server.toolbox.ask, self.path.removeprefix(API), fields, folder)
            for answer in self._answers(once, question):
                refused = "errors" in answer
                document = answer if refused else answer["document"]
                status = HTTPStatus.UNPROCESSABLE_ENTITY if refused else HTTPStatus.OK
                self._send_json(document, status, notes=answer.get("notes", ()))

    def _answers(self, question: Question, fields: object) -> Iterator[Answer]:
        """Yield answers until they end, time is up, or the other side closes its connection."""
        end = monotonic() + MOST_SECONDS
        with asked(question, fields) as answers:
            while True:
                ready = wait([answers, self.connection], end - monotonic())
                if self.connection in ready:
                    return
                if not ready:
                    yield LATE
                    return
                try:
                    yield answers.recv()
                except EOFError:
                    return

    @property
    def _server(self) -> Server:
        return cast("Server", self.server)

    def _send_json(self, document: object, status: int, notes: Sequence[str] = ()) -> None:
        content = json.dumps(document, ensure_ascii=False).encode()
        self._head("application/json", length=len(content), status=status, notes=notes)
        self.wfile.write(content)

    def _send(self, kind: str, content: bytes, *, name: str = "") -> None:
        self._head(kind, name=name, length=len(content))
        self.wfile.write(content)

    def _head(
        self,
        kind: str,
        *,
        name: str = "",
        length: int | None = None,
        status: int = HTTPStatus.OK,
        notes: Sequence[str] = (),
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Cache-Control": "no-store",
            **SAFE,
            "Content-Length": None if length is None else str(length),
            "Content-Disposition": f'attachment; filename="{name}"' if name else None,
            NOTES: json.dumps(notes) if notes else None,
        }
        for field, value in stated(headers).items():
            self.send_header(field, value)
        self.end_headers()

    def _from_here(self) -> bool:
        """Return whether a request is one that the page itself, or its user by hand, could have sent."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if _own(host, self._server.host) and origin in (None, f"http://{host}"):
            return True
        self.send_error(HTTPStatus.FORBIDDEN, explain="only for the page itself")
        return False


def _nobody(name: str, arguments: Mapping[str, Any], folder: str) -> Answer:
    raise bad(name, "is no tool", "this server has none")


def _own(host: str, bound: str) -> bool:
    """Return whether a `Host` header is an address, or a name of this machine: no foreign name leads here then."""
    name = urlsplit(f"//{host}").hostname or ""
    if name in ("localhost", bound.casefold(), socket.gethostname().casefold()):
        return True
    try:
        return bool(ip_address(name))
    except ValueError:
        return False
