"""Where a thread stands: whether in its own work, or in a wait for other ranks or the device."""

from __future__ import annotations

import linecache
import sys
from types import FrameType

COLLECTIVES = "distributed_c10d.py"
# calls that return when others, or the device, have come so far
WAITS = (".wait(", "wait_tensor", ".synchronize(", ".tolist(", ".item(")


def stands_in_a_wait(thread: int) -> bool:
    """Return whether a thread is in a collective of torch.distributed, or on a line that waits."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if _waits(frame):
            return True
        frame = frame.f_back
    return False


def _waits(frame: FrameType) -> bool:
    if frame.f_code.co_filename.endswith(COLLECTIVES):
        return True
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)  # between two lines it has none
    return any(call in line for call in WAITS)
