"""Processes of tests come from one server, which has imported what any of them needs: PyTorch would take each seconds.

There is one server in a process, with what the first names that starts it: so everybody starts it here.
"""

from __future__ import annotations

from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext


def context() -> ForkServerContext:
    """Return what makes such processes; the server runs."""
    found = get_context("forkserver")
    found.set_forkserver_preload(["tests.preloaded"])
    forkserver.ensure_running()
    return found
