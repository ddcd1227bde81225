"""The what-if page's server in this process, and questions for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from shardwright.serving.tools import Toolbox
from shardwright.serving.what_if.server import Server

SMALL = {
    "model": "gpt2-medium",
    "cluster": "1x8xA100-SXM-40+2x8xV100-SXM2",
    "global_batch": 64,
    "seq_len": 1024,
    "tokens": "1B",
    "precision": "fp16",
}


@contextmanager
def served(toolbox: Toolbox | None = None) -> Iterator[Server]:
    with Server("127.0.0.1", 0, toolbox=toolbox) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: Server, path: str, body: object, **headers: str) -> HTTPResponse:
    """Return the response to a question in JSON, or in bytes as they are."""
    host, port = str(server.server_address[0]), int(server.server_address[1])
    connection = HTTPConnection(host, port, timeout=120)
    told = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), told)
    return connection.getresponse()


def answers(server: Server, fields: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ask(server, "/answer", fields).read().splitlines()]
