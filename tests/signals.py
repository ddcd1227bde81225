"""Signals for the processes that tests start."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Let the processes that are started here take SIGINT and SIGHUP, even where the tests themselves ignore them
    (`nohup`)."""
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupted)
        signal.signal(signal.SIGHUP, hung_up)
