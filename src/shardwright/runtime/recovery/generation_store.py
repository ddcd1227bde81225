"""torch's key-value store of one generation, whose values a keeper holds: no worker hosts what all depend on."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from shardwright.runtime.recovery.channel import Message

Ask = Callable[..., tuple[Message, bytes]]
"""Sends `what` with keys, seconds or an amount and a payload to the keeper; raises where the generation is over."""


class GenerationStore(dist.Store):  # type: ignore[misc,name-defined]
    """A store as `torch.distributed.init_process_group` takes it. `ask` blocks the calling thread alone."""

    def __init__(self, ask: Ask, seconds: float) -> None:
        super().__init__()
        self._ask, self._seconds = ask, seconds

    def set(self, key: str, value: Any) -> None:
        self._ask("set", payload=_bytes(value), key=key)

    def get(self, key: str) -> bytes:
        return self._ask("get", key=key, seconds=self._seconds)[1]

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", key=key, amount=amount)[0]["value"])

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", keys=list(keys))[0]["value"])

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        self._ask("wait", keys=list(keys), seconds=seconds)

    def compare_set(self, key: str, expected: Any, wanted: Any) -> bytes:
        before = base64.b64encode(_bytes(expected)).decode()
        return self._ask("compare_set", payload=_bytes(wanted), key=key, expected=before)[1]

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", key=key)[0]["value"])

    def num_keys(self) -> int:
        return int(self._ask("count")[0]["value"])

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._seconds = timeout.total_seconds()

    @property
    def timeout(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self._seconds)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
