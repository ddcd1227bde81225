"""How far long work is: told where it is done, heard where someone waits. It changes no result.

Work tells the part of it that is done, from 0 to 1; what it calls tells parts of a share of that (`within`). Where
effort is limited and work may end before, the part is that of the limit: what is left is then at most what it seems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[float], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("progress", default=None)


def tell(part: float) -> None:
    """Tell whoever listens which part of the work is done, 0 to 1."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(min(max(part, 0.0), 1.0))


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """Hear what the work inside tells."""
    before = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(before)


@contextmanager
def within(low: float, high: float) -> Iterator[None]:
    """Let what the work inside tells be the share of this work from `low` to `high`."""
    outer = _LISTENER.get()
    if outer is None:
        yield
        return
    with heard(lambda part: outer(low + (high - low) * part)):
        yield
    outer(high)
