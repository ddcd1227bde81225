"""Where a thread stands: whether in its own work, or in a wait for other ranks or the device."""

from __future__ import annotations

import linecache
import sys
from types import FrameType

COLLECTIVES = "distributed_c10d.py"
FOR_OTHERS = (".wait(", "wait_tensor")
FOR_DEVICE = (".synchronize(", ".tolist(", ".item(")  # which may be waiting for others


def stands_in_a_wait(thread: int) -> bool:
    """Return whether a thread is in a collective of torch.distributed, or on a line that waits."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if _waits(frame):
            return True
        frame = frame.f_back
    return False


def waits_for_others(place: tuple[str, int]) -> bool:
    """Return whether a line of a file is in a collective of torch.distributed, or waits for one."""
    return place[0].endswith(COLLECTIVES) or any(call in linecache.getline(*place) for call in FOR_OTHERS)


def _waits(frame: FrameType) -> bool:
    place = (frame.f_code.co_filename, frame.f_lineno or 0)  # between two lines it has none
    return waits_for_others(place) or any(call in linecache.getline(*place) for call in FOR_DEVICE)
