"""Claims in etcd, by the JSON that its version 3 takes over HTTP, for those who have one. No PyTorch."""

from __future__ import annotations

import json
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ANSWER_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Etcd:
    """The members of an etcd cluster; any of them answers for all. Calls block, and raise OSError where none does."""

    members: Sequence[tuple[str, int]]
    what: str = "etcd"

    def claim(self, run: str, number: int, content: str) -> str:
        """Claim to follow a generation of a run, and return the claim that stands: this one, or the first."""
        key = _coded(_key(run, number))
        nobody = {"key": key, "target": "CREATE", "result": "EQUAL", "createRevision": "0"}
        put = {"requestPut": {"key": key, "value": _coded(content)}}
        answer = self._asked(
            "txn", {"compare": [nobody], "success": [put], "failure": [{"requestRange": {"key": key}}]}
        )
        if answer.get("succeeded"):
            return content
        return _values(answer["responses"][0]["response_range"])[0]

    def claimed(self, run: str, number: int) -> str:
        """Return the claim to follow a generation."""
        return _values(self._asked("range", {"key": _coded(_key(run, number))}))[0]

    def claims(self, run: str) -> list[int]:
        """Return the numbers of the generations of a run that were claimed to be followed, in order."""
        first, after = _key(run, 0), _key(run, 10**6 - 1) + "\0"
        found = self._asked("range", {"key": _coded(first), "range_end": _coded(after), "keys_only": True})
        return sorted(int(b64decode(item["key"]).decode().rpartition("-")[2]) for item in found.get("kvs", ()))

    def _asked(self, what: str, message: dict[str, Any]) -> dict[str, Any]:
        opener, reasons = urllib.request.build_opener(urllib.request.ProxyHandler({})), []
        for host, port in self.members:
            url = f"http://{host}:{port}/v3/kv/{what}"
            request = urllib.request.Request(url, data=json.dumps(message).encode())
            try:
                with opener.open(request, timeout=ANSWER_SECONDS) as answer:
                    return dict(json.load(answer))
            except (OSError, ValueError) as error:
                reasons.append(f"{host}:{port}: {error}")
        raise OSError(f"etcd does not answer: {'; '.join(reasons)}")


def _key(run: str, number: int) -> str:
    return f"shardwright/{run}/after-{number:06d}"


def _coded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _values(found: dict[str, Any]) -> list[str]:
    """Return the values of a range. Raises OSError where it has none."""
    values = [b64decode(item["value"]).decode() for item in found.get("kvs", ())]
    if not values:
        raise OSError("etcd has no such claim any more")
    return values
