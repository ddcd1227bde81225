"""A machine whose worker is held back again and again is found by its pace and named, while all train on."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from tests.runtime.recovery.fleet import Fleet, copies


@pytest.mark.nightly
def test_a_throttled_machine_is_named(tmp_path: Path) -> None:
    """Its worker runs for a third of the time. Whether a new split pays is decided by predictions; the run ends well
    either way."""
    with Fleet(tmp_path, copies(3), 100_000, every=1000, silence=8.0) as fleet:
        fleet.until(lambda: fleet.step(2) >= 40, "steps")
        over = threading.Event()

        def throttle() -> None:
            while not over.is_set():
                for pid in fleet.workers(2):
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.02)
                    os.kill(pid, signal.SIGCONT)
                time.sleep(0.01)

        thread = threading.Thread(target=throttle)
        thread.start()
        try:
            fleet.until(lambda: "machine-2 computes" in fleet.logs(), "the slow machine's name")
        finally:
            over.set()
            thread.join()
        step = fleet.step(0)
        fleet.until(lambda: fleet.step(0) > step + 20, "steps after it")
        assert "times as long as it should" in fleet.logs()
