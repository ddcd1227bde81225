"""The keys and values by which the process groups of one generation find each other, held by a keeper. No PyTorch."""

from __future__ import annotations

import asyncio
import base64

from shardwright.runtime.recovery.channel import Message


class Values:
    """Keys and values. Waiters end with the generation: `close` raises in all of them."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = asyncio.Condition()
        self._closed = False

    async def answer(self, message: Message, payload: bytes) -> tuple[Message, bytes]:
        """Answer `set`, `get`, `add`, `check`, `wait`, `compare_set`, `delete`, `count`, as torch's stores mean them.
        Raises TimeoutError where a key does not come within the message's `seconds`."""
        key = message.get("key", "")
        match message["what"]:
            case "set":
                await self._set(key, payload)
            case "get":
                await self._wait([key], message["seconds"])
                return {}, self._values[key]
            case "wait":
                await self._wait(message["keys"], message["seconds"])
            case "check":
                return {"value": all(name in self._values for name in message["keys"])}, b""
            case "add":
                total = int(self._values.get(key, b"0")) + message["amount"]
                await self._set(key, str(total).encode())
                return {"value": total}, b""
            case "compare_set":
                expected, wanted = base64.b64decode(message["expected"]), payload
                now = self._values.get(key)
                if now == expected or (now is None and not expected):
                    await self._set(key, wanted)
                return {}, self._values.get(key, expected)
            case "delete":
                return {"value": self._values.pop(key, None) is not None}, b""
            case "count":
                return {"value": len(self._values)}, b""
        return {}, b""

    async def close(self) -> None:
        """End all waiting: the generation is over."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def _set(self, key: str, value: bytes) -> None:
        async with self._changed:
            self._values[key] = bytes(value)
            self._changed.notify_all()

    async def _wait(self, keys: list[str], seconds: float) -> None:
        async with self._changed, asyncio.timeout(seconds):
            await self._changed.wait_for(lambda: self._closed or all(key in self._values for key in keys))
        if self._closed:
            raise TimeoutError("the generation is over")
