"""Requests to stop: by signal, or by the launcher's file."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.runtime.job.ending import StopRequest

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_and_does_not_end_the_process(number: signal.Signals) -> None:
    request = StopRequest(None)
    assert not request.asked()
    os.kill(os.getpid(), number)
    assert request.asked()


def test_the_launchers_file_asks_as_well(tmp_path: Path) -> None:
    request = StopRequest(tmp_path / "stop")
    assert not request.asked()
    (tmp_path / "stop").touch()
    assert request.asked()
