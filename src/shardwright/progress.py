"""How far long work is, told where it is done and heard where someone waits; and when it is to stop.

Work tells the part of it that is done, from 0 to 1; what it calls tells parts of a share of that (`within`). Where
effort is limited and work may end before, the part is that of the limit: what is left is then at most what it seems.
A search also tells what it has (`tell_best`), and ends early, with what it has and has proved, once whoever asks has
had enough (`until`). Nothing else here changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[float], None]
BestListener = Callable[[float, float | None], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("progress", default=None)
_BEST: ContextVar[BestListener | None] = ContextVar("best", default=None)
_ENOUGH: ContextVar[Callable[[], bool] | None] = ContextVar("enough", default=None)


def tell(part: float) -> None:
    """Tell whoever listens which part of the work is done, 0 to 1."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(min(max(part, 0.0), 1.0))


def tell_best(value: float, bound: float | None = None) -> None:
    """Tell the value of the best answer so far, and what no answer beats where that is proved."""
    listener = _BEST.get()
    if listener is not None:
        listener(value, bound)


def stopped() -> bool:
    """Return whether whoever asks has had enough: work that can answer with what it has ends."""
    enough = _ENOUGH.get()
    return enough is not None and enough()


@contextmanager
def until(enough: Callable[[], bool]) -> Iterator[None]:
    """Let the work inside end early once `enough` says so."""
    before = _ENOUGH.set(enough)
    try:
        yield
    finally:
        _ENOUGH.reset(before)


@contextmanager
def heard(listener: Listener, best: BestListener | None = None) -> Iterator[None]:
    """Hear what the work inside tells; `best` hears of answers, too."""
    before, before_best = _LISTENER.set(listener), _BEST.set(best or _BEST.get())
    try:
        yield
    finally:
        _LISTENER.reset(before)
        _BEST.reset(before_best)


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
