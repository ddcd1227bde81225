"""Whose fault it is that a rank cannot go on: its own, or that of one it waited for."""

from __future__ import annotations

from collections.abc import Iterator
from pickle import UnpicklingError
from traceback import walk_tb

import torch
import torch.distributed as dist

from shardwright.runtime.job.standing import waits_for_others

MESSAGE_CHARACTERS = 400
BACKENDS = ("gloo", "nccl")
LOST = (RuntimeError, UnpicklingError, EOFError)


def lost_others(error: BaseException) -> bool:
    """Return whether an error says that other ranks are lost: torch.distributed raises its own errors, and gloo plain
    RuntimeErrors out of a collective or a wait for one; what an aborted collective leaves of an object cannot be read.
    Memory that is full and a device that fails are faults of this rank, wherever they show."""
    if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError) or not isinstance(error, LOST):
        return False
    if isinstance(error, dist.DistError) or any(map(waits_for_others, _places(error))):
        return True
    return any(name in str(error).lower() for name in BACKENDS)  # out of the backward pass, which is no frame


def fault_of(error: BaseException) -> str:
    """Return what went wrong, in words and with the line where it did."""
    lines = str(error).strip().splitlines() or [""]
    *_, (path, line) = [("", 0), *_places(error)]
    return f"{type(error).__name__}: {lines[0][:MESSAGE_CHARACTERS]} ({path.rpartition('/')[2]}:{line})"


def _places(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield file and line of each frame that an error came through, the innermost last."""
    return ((frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__))
