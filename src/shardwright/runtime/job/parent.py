"""A rank ends with the process that started it, so that nothing holds GPUs or writes after a launcher was killed.

Needs no PyTorch: a rank begins with it, before anything else takes time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

from shardwright.runtime.job.status import ORPHANED

INTERVAL_SECONDS = 1.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(launcher: int | None) -> None:
    """End this process soon after its parent has ended. `launcher` is the process id of a parent that starts processes
    from the one thread that lives as long as it does; None: of unknown kind, as torchrun or srun.

    Linux is asked to kill this process together with the launcher, whatever it does then; a thread looks as well.
    """
    parent = os.getppid()
    if launcher is not None:
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            parent = os.getppid()
        if parent != launcher:  # it has ended before this was asked for
            os._exit(ORPHANED)
    threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(INTERVAL_SECONDS)
    os._exit(ORPHANED)
