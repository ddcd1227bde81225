"""Calls to services that may never answer, such as an object store. No PyTorch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

Result = TypeVar("Result")
ANSWER_SECONDS = 60.0
"""So long a service has for an answer, or for a block of what it is sent."""
MOST = 64
"""So many calls a service may leave without an answer: each has its thread."""


@dataclass(slots=True, kw_only=True)
class Pulse:
    """When (monotonic) a call last made progress; calling it says that it does."""

    seen: float = field(default_factory=time.monotonic)

    def __call__(self) -> None:
        self.seen = time.monotonic()


async def answered(
    of: str, call: Callable[[], Result], *, seconds: float = ANSWER_SECONDS, pulse: Pulse | None = None
) -> Result:
    """Return what a call of a service returns, made on a thread of its own. Raises OSError where nothing has come of it
    for so many seconds, counted from the last beat of its pulse; its thread is left behind, and holds up no exit."""
    if sum(thread.name == of for thread in threading.enumerate()) >= MOST:
        raise OSError(f"{of} has left {MOST} calls without an answer")
    alive, future = pulse or Pulse(), Future[Result]()
    threading.Thread(target=_run, args=(call, future), name=of, daemon=True).start()
    answer = asyncio.wrap_future(future)
    try:
        while not answer.done():
            left = alive.seen + seconds - time.monotonic()
            if left <= 0.0:
                raise OSError(f"{of} has not answered for {seconds:g} s")
            await asyncio.wait([answer], timeout=left)
        return answer.result()
    finally:
        answer.cancel()


def _run(call: Callable[[], Result], future: Future[Result]) -> None:
    future.set_running_or_notify_cancel()
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
